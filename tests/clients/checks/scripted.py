"""Conversations in which the demo model plays its part: it cannot call tools of its own accord.

What it writes is demanded by a grammar that is put into each request, one text after the other; it
thinks freely, but only for a few tokens. Everything else is the server's and the client's.
"""

import json
import os

try:
    import httpx2 as httpx
except ImportError:  # what older clients use
    import httpx

URL = f"{os.environ['TOOLS_URL']}/v1"
WEATHER = {"Bonn": "rain", "Rome": "sun", "Oslo": "snow"}
# three steps: one call, two calls at once, an answer
STEPS = (
    [("get_weather", {"city": "Bonn"})],
    [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"})],
    "Rain in Bonn, sun in Rome, snow in Oslo.",
)
ASKED = ["Bonn", "Rome", "Oslo"]


def written(step):
    """What the model writes for a step, in the form of tools.jinja."""
    if isinstance(step, str):
        return step
    calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in step]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def tool_with(name, arguments):
    """A tool that can be called in one way."""
    schema = {
        "type": "object",
        "properties": {key: {"const": value} for key, value in arguments.items()},
        "required": list(arguments),
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


class Script:
    """Puts the next step into each chat request; `bodies` are those that were sent."""

    def __init__(self, steps=STEPS):
        self.left = list(steps)
        self.bodies = []

    def _add(self, request):
        if not request.url.path.endswith("/chat/completions"):
            return request
        body = json.loads(request.content)
        self.bodies.append(body)
        step = self.left.pop(0)
        sent = body | {"reasoning_budget_tokens": 6, "max_tokens": 300}
        if body.get("tool_choice", "auto") in ("auto", "none"):
            sent["lark"] = f"start: {json.dumps(written(step))}"
        else:  # the server demands the call itself; only its arguments are given
            sent |= {"tools": [tool_with(*step[0])], "parallel_tool_calls": False}
        headers = {key: value for key, value in request.headers.items() if key != "content-length"}
        return httpx.Request(request.method, request.url, headers=headers, json=sent)

    def client(self):
        """An HTTP client for a package that takes one."""
        script = self

        class Transport(httpx.HTTPTransport):
            def handle_request(self, request):
                return super().handle_request(script._add(request))

        return httpx.Client(transport=Transport(), timeout=60)

    def async_client(self):
        """The same for asynchronous packages."""
        script = self

        class Transport(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request):
                return await super().handle_async_request(script._add(request))

        return httpx.AsyncClient(transport=Transport(), timeout=60)

    def check(self):
        """All steps were asked for, and the results of the tools came back to the model."""
        assert not self.left, self.left
        results = [one["content"] for one in self.bodies[-1]["messages"] if one["role"] == "tool"]
        assert results == [WEATHER[city] for city in ASKED], results
