"""Seconds of a request to Headstart and to llama-server while other programs use the same cores.

    python -m benchmarks.busy_servers MODEL.gguf --llama-server BINARY [--threads N] [--tokens N]

Each server alone on its port, without speculation: a request without neighbours, then beside one
program per core that never sleeps, then beside a second server of the same kind that answers a
request without end. Two threads of a step wait for each other; whoever spins meanwhile takes the
core from the one that it waits for.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SPIN = [sys.executable, "-c", "while True: pass"]


@contextmanager
def running(command: list[str]) -> Iterator[str]:
    """A server's address, once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).read()
                break
            except OSError:
                if server.poll() is not None:
                    raise
                time.sleep(0.05)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Programs that never sleep."""
    programs = [subprocess.Popen(SPIN) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def ask(url: str, tokens: int) -> float:
    """Seconds of a request."""
    body = {"prompt": "def f(", "n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
    started = time.monotonic()
    data = json.dumps(body).encode()
    urllib.request.urlopen(f"{url}/completion", data, timeout=300).read()
    return time.monotonic() - started


def ask_for_ever(url: str, end: threading.Event) -> None:
    """Keep a server busy."""
    while not end.is_set():
        ask(url, 16)


def measure(name: str, command: list[str], tokens: int, repeats: int) -> None:
    """Print one server's lines."""
    with ExitStack() as stack:
        url = stack.enter_context(running(command))
        ask(url, 8)
        rows = {"alone": [ask(url, tokens) for _ in range(repeats)]}
        with spinning(os.cpu_count() or 1):
            rows["beside one busy program per core"] = [ask(url, tokens) for _ in range(repeats)]
        other = stack.enter_context(running(command))
        end = threading.Event()
        busy = threading.Thread(target=ask_for_ever, args=(other, end))
        busy.start()
        time.sleep(0.5)
        rows["beside another of its kind"] = [ask(url, tokens) for _ in range(repeats)]
        end.set()
        busy.join()
    for what, seconds in rows.items():
        print(f"{name:12} {what:34} {'  '.join(f'{one:6.2f}' for one in seconds)} s", flush=True)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    common = ["-m", str(options.model), "-c", "1024", "-np", "1", "-t", str(options.threads)]
    theirs = [str(options.llama_server), *common, "--no-webui"]
    ours = [sys.executable, "-m", "headstart", "serve", *common, "--spec", "off"]
    for name, command in (("Headstart", ours), ("llama-server", theirs)):
        measure(name, command, options.tokens, options.repeats)


if __name__ == "__main__":
    main()
