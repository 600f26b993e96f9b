"""One model over several machines: `--rpc`, `headstart rpc-worker` and `headstart rpc-build`."""
