"""An MCP server for tests: answers in another order, says other things in between, fails, ends."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listed(cursor: str | None) -> dict[str, Any]:
    names = ["echo", "fail", "sleep"] if cursor is None else ["end", "leave", "where", "flood"]
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    tools = [{"name": name, "description": name, "inputSchema": schema} for name in names]
    return {"tools": tools} | ({"nextCursor": "more"} if cursor is None else {})


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "sleep":
        time.sleep(300)
    if name == "end":
        print("no more", file=sys.stderr, flush=True)
        os._exit(1)
    if name == "flood":
        for _ in range(24):
            sys.stdout.write("x" * 2**20)
    text = os.environ.get("WHERE", "") if name == "where" else str(arguments.get("text"))
    parts = [{"type": "text", "text": text}, {"type": "image", "data": "", "mimeType": "image/png"}]
    return {"content": parts, "isError": name == "fail"}


def main() -> None:
    if starts := os.environ.get("STARTS"):  # a file; only the first start works
        with open(starts, "a") as file:
            file.write("x")
        if os.path.getsize(starts) > 1:
            sys.stdin.read()
            return
    print("this is no JSON", flush=True)
    sys.stdout.buffer.write(b"and no UTF-8: \xff\n")
    for line in sys.stdin:
        message = json.loads(line)
        parameters = message.get("params", {})
        if "id" not in message:
            continue
        say(method="notifications/message", params={"level": "info", "data": "so"})
        say(id=message["id"] + 1000, result={"content": []})  # of nobody's question
        if message["method"] == "tools/list":
            say(id=message["id"], result=listed(parameters.get("cursor")))
        elif message["method"] == "tools/call":
            result = called(parameters["name"], parameters["arguments"])
            say(id=message["id"], result=result)
            if parameters["name"] == "leave":
                return
        else:
            info = {"name": "test", "version": "1"}
            begun = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": info}
            say(id=message["id"], result=begun)


if __name__ == "__main__":
    main()
