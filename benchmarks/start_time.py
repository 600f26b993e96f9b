"""How long a server takes from the command to its first answer.

    python -m benchmarks.start_time [--repeats N] [flags of serve]

Prints, for each start: seconds until it listens, until /health says ready, until a short completion
is answered, and the CPU seconds of the web process and of the engine process until then: on a busy
machine only those can be compared.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from benchmarks.lib.serving import cpu_seconds


def main() -> int:
    """Start servers one after another and time them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options, flags = parser.parse_known_args()
    for _ in range(options.repeats):
        print(start(flags))
    return 0


def start(flags: list[str]) -> str:
    """Time one start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    command = [sys.executable, "-m", "headstart", "serve", "--port", str(port)]
    server = subprocess.Popen([*command, "--log-level", "error", *flags], stdout=subprocess.DEVNULL)
    try:
        listening = ready = 0.0
        while not ready:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
                ready = time.monotonic() - started
            except urllib.error.HTTPError:
                listening = listening or time.monotonic() - started
            except OSError:
                if server.poll() is not None:
                    raise
            time.sleep(0.005)
        body = json.dumps({"prompt": "def f(", "n_predict": 4}).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{port}/completion", body, timeout=60).read()
        answered = time.monotonic() - started
        cpu = ", ".join(f"{seconds:.2f}" for seconds in cpu_seconds(server.pid))
    finally:
        server.terminate()
        server.wait()
    return (
        f"listens {listening or ready:.2f} s, ready {ready:.2f} s, first answer {answered:.2f} s; "
        f"CPU seconds of its processes: {cpu}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
