"""How long /health takes while the engine hangs and a hundred prompts wait.

    python -m benchmarks.health

A real server with the embedded model; its engine is stopped (SIGSTOP) for ten seconds, then goes on
for six. Goal: 100 ms at most.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx2
from tests.server.server_process import Server

GOAL_MS = 100.0
STOPPED_SECONDS, WORKING_SECONDS, PAUSE_SECONDS = 10.0, 6.0, 0.02
PROMPT = "def f(x):\n" * 120


def ask(url: str, number: int) -> None:
    """One prompt that waits; whether it is answered does not matter here."""
    body = {"prompt": PROMPT + str(number), "max_tokens": 8}
    with suppress(httpx2.HTTPError), httpx2.Client(timeout=40, trust_env=False) as client:
        client.post(url + "/completion", json=body)


def watch(client: httpx2.Client, seconds: float) -> list[float]:
    """Milliseconds of /health, again and again."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.monotonic()
        client.get("/health")
        times.append(1000.0 * (time.monotonic() - started))
        time.sleep(PAUSE_SECONDS)
    return times


def main() -> int:
    """Print median, 99th percentile and maximum; 1 if the goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(["--threads", "1", "--context", "2048"], Path(folder))
        try:
            engine = server.engine_pid()
            os.kill(engine, signal.SIGSTOP)
            for number in range(100):
                threading.Thread(target=ask, args=(server.url, number), daemon=True).start()
            with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
                times = watch(client, STOPPED_SECONDS)
                os.kill(engine, signal.SIGCONT)
                times += watch(client, WORKING_SECONDS)
        finally:
            server.stop()
    high = statistics.quantiles(times, n=100)[-1]
    print("| calls | median ms | 99 % | most |\n|---|---|---|---|")
    print(f"| {len(times)} | {statistics.median(times):.1f} | {high:.1f} | {max(times):.1f} |")
    return int(max(times) > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
