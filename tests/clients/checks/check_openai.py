"""The openai package: chat, streams, parse, tools, completions, models, embeddings, responses."""

import json
import os

import openai
from openai import NotFoundError, OpenAI
from pydantic import BaseModel
from scripted import ASKED, STEPS, URL, Script
from scripted import WEATHER as SAID

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


ANY = {"type": "function", "function": WEATHER["function"] | {"parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
}}}  # fmt: skip


class GetWeather(BaseModel):
    city: str


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


def three_steps(answer_of):
    """Ask, run the tools, ask again, until there is an answer."""
    script = Script()
    sdk = OpenAI(base_url=URL, api_key="-", max_retries=0, http_client=script.client())
    messages, asked = [{"role": "user", "content": "Weather?"}], []
    has_calls = True
    while has_calls:
        message = answer_of(sdk, messages)
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        assert message.reasoning_content  # the model thought first, and the thoughts go back to it
        has_calls = bool(message.tool_calls)
        for call in message.tool_calls or ():
            city = json.loads(call.function.arguments)["city"]
            asked.append(city)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": SAID[city]})
    assert (message.content, asked) == (STEPS[-1], ASKED)
    script.check()


def at_once(sdk, messages):
    return (
        sdk.chat.completions.create(model="demo", messages=messages, tools=[ANY]).choices[0].message
    )


def parsed(sdk, messages):
    tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    answer = sdk.chat.completions.parse(model="demo", messages=messages, tools=tools)
    message = answer.choices[0].message
    for call in message.tool_calls or ():
        assert isinstance(call.function.parsed_arguments, GetWeather)
    return message


def streamed(sdk, messages):
    with sdk.chat.completions.stream(model="demo", messages=messages, tools=[ANY]) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    if message.tool_calls:
        assert "tool_calls.function.arguments.delta" in kinds
        assert kinds.count("tool_calls.function.arguments.done") == len(message.tool_calls)
    return message


for answer_of in (at_once, parsed, streamed):
    three_steps(answer_of)

# the same without a script: calls are required twice, with what the model likes best
messages = [{"role": "user", "content": "Weather?"}]
sdk = OpenAI(base_url=URL, api_key="-", max_retries=0)
for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}, "none"):
    answer = sdk.chat.completions.create(
        model="demo", messages=messages, tools=[WEATHER], tool_choice=choice, max_tokens=60,
        parallel_tool_calls=False, extra_body={"reasoning_budget_tokens": 5},
    )  # fmt: skip
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if choice == "none":
        assert not message.tool_calls
        continue
    (call,) = message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    result = SAID[json.loads(call.function.arguments)["city"]]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print("ok")
