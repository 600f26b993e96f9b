"""The anthropic package: messages, streams, tools, counting."""

import os

from anthropic import Anthropic

client = Anthropic(base_url=os.environ["SERVER_URL"], api_key="-", max_retries=0)
GREEDY = {"temperature": 0}  # the package has no word for it any more
ASK = [{"role": "user", "content": "Say hello."}]
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Bonn", "Rome"]}},
        "required": ["city"],
    },
}

answer = client.messages.create(
    model="demo", system="Be short.", messages=ASK, max_tokens=12, extra_body=GREEDY
)
assert answer.content[0].text
assert answer.usage.output_tokens <= 12
with client.messages.stream(
    model="demo", system="Be short.", messages=ASK, max_tokens=12, extra_body=GREEDY
) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == answer.content[0].text == final.content[0].text
called = client.messages.create(
    model="demo", messages=ASK, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=200
)
(use,) = [block for block in called.content if block.type == "tool_use"]
assert called.stop_reason == "tool_use"
assert use.input["city"] in ("Bonn", "Rome")
result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
after = [
    *ASK,
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [result]},
]
assert client.messages.create(model="demo", messages=after, tools=[TOOL], max_tokens=4).content
assert client.messages.count_tokens(model="demo", messages=ASK).input_tokens > 3
print("ok")
