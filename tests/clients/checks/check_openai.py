"""The openai package: chat, streams, parse, tools, completions, models, embeddings, responses."""

import json
import os

from openai import NotFoundError, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{os.environ['SERVER_URL']}/v1", api_key="-", max_retries=0)
ASK = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Bonn", "Rome"]}},
            "required": ["city"],
        },
    },
}


class Person(BaseModel):
    name: str
    age: int


assert client.models.list().data[0].id == "demo"
assert client.models.retrieve("demo").id == "demo"
chat = client.chat.completions.create(model="demo", messages=ASK, max_tokens=12, temperature=0)
assert chat.choices[0].message.content
assert chat.usage.completion_tokens <= 12
parts = list(
    client.chat.completions.create(
        model="demo", messages=ASK, max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )
)  # fmt: skip
streamed = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
assert streamed == chat.choices[0].message.content
assert parts[-1].usage.completion_tokens == chat.usage.completion_tokens
with client.chat.completions.stream(model="demo", messages=ASK, max_tokens=12) as stream:
    kinds = {event.type for event in stream}
assert {"content.delta", "content.done"} <= kinds, kinds
person = client.chat.completions.parse(
    model="demo", messages=ASK, response_format=Person, max_tokens=400, seed=1
)
assert isinstance(person.choices[0].message.parsed, Person)
called = client.chat.completions.create(
    model="demo", messages=ASK, tools=[WEATHER], tool_choice="required", max_tokens=200
)
call = called.choices[0].message.tool_calls[0]
assert called.choices[0].finish_reason == "tool_calls"
assert call.function.name == "get_weather"
assert json.loads(call.function.arguments)["city"] in ("Bonn", "Rome")
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
after = [*ASK, called.choices[0].message, result]
assert client.chat.completions.create(model="demo", messages=after, max_tokens=4).choices
plain = client.completions.create(model="demo", prompt="def f(", max_tokens=6, logprobs=2)
assert plain.choices[0].logprobs.tokens
try:
    client.models.retrieve("another")
except NotFoundError:
    pass
else:
    raise AssertionError("a model that is not there was found")
answer = client.responses.create(model="demo", input="Say hello.", max_output_tokens=12)
assert answer.output_text
events = [
    event.type
    for event in client.responses.create(
        model="demo", input="Say hello.", max_output_tokens=12, stream=True
    )
]
assert events[0] == "response.created", events
assert "response.output_text.delta" in events
print("ok")
