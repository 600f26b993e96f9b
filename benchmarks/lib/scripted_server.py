"""A server that answers at a fixed pace, to measure what stands before it.

    python -m benchmarks.lib.scripted_server --port 8099

The first token comes after 5 ms, the others every 20 ms: `max_tokens` of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import uvicorn

FIRST_SECONDS, NEXT_SECONDS = 0.005, 0.02


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer a POST with a stream of tokens, everything else with an empty object."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    kind = b"text/event-stream" if body else b"application/json"
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
    await send(start)
    if not body:
        facts = {"total_slots": 64} if scope["path"] == "/props" else {}
        await send({"type": "http.response.body", "body": json.dumps(facts).encode()})
        return
    due = asyncio.get_running_loop().time() + FIRST_SECONDS
    for number in range(json.loads(body)["max_tokens"]):
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        due += NEXT_SECONDS
        event = {"choices": [{"text": f" {number}"}]}
        piece = b"data: " + json.dumps(event).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]"})


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, port=parser.parse_args().port, log_level="critical", lifespan="off")


if __name__ == "__main__":
    main()
