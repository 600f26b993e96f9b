"""The server of a newer llama.cpp, from the package xllamacpp, as a command for `--against`.

    headstart bench -m T.gguf -md D.gguf --against \\
        "ENV/bin/python scripts/xllamacpp_server.py -m T.gguf -md D.gguf --probabilistic"

ENV is an environment with that package, 2026.10.11549 (llama.cpp b11549) when this was written. Its
probabilistic drafts are sampled from the draft model and accepted by rejection sampling.
"""

import argparse
import threading

import xllamacpp


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-md", "--draft-model")
    parser.add_argument("--probabilistic", action="store_true")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames, params.port = ["127.0.0.1"], options.port
    params.n_parallel, params.n_ctx = options.parallel, options.context
    if options.draft_model:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = options.draft_model
        params.speculative.draft.probabilistic = options.probabilistic
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
