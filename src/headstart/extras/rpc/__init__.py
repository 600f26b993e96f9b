"""One model on several machines: `--rpc`, `headstart rpc-worker` and `headstart rpc-build`."""
