"""langchain: invoke, stream, tools, structured output, agents."""

import os

from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from scripted import ASKED, STEPS, URL, WEATHER, Script

model = ChatOpenAI(
    model="demo", base_url=f"{os.environ['SERVER_URL']}/v1", api_key="-", temperature=0,
    max_tokens=200, max_retries=0,
)  # fmt: skip


@tool
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


class Person(BaseModel):
    """A person."""

    name: str
    is_old: bool


short = model.bind(max_tokens=12)
answer = short.invoke("Say hello.")
assert answer.content
assert "".join(part.content for part in short.stream("Say hello.")) == answer.content
calls = model.bind_tools([add], tool_choice="any").invoke("Add 1 and 2.").tool_calls
assert calls[0]["name"] == "add"
assert set(calls[0]["args"]) == {"first", "second"}
person = model.with_structured_output(Person, method="json_schema").invoke("Who is Ann?")
assert isinstance(person, Person)
# an agent that calls a tool in two steps and answers in the third, at once and streamed
asked = []


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    asked.append(city)
    return WEATHER[city]


for is_streamed in (False, True):
    script = Script()
    agent = create_agent(
        ChatOpenAI(
            model="demo", base_url=URL, api_key="-", max_retries=0, http_client=script.client()
        ),
        [get_weather],
    )
    messages = {"messages": [{"role": "user", "content": "Weather?"}]}
    asked.clear()
    if is_streamed:
        parts = [part for part, _ in agent.stream(messages, stream_mode="messages")]
        said = [part.content for part in parts if isinstance(part, AIMessageChunk)]
        assert "".join(said) == STEPS[-1], said
        assert any(part.tool_call_chunks for part in parts if isinstance(part, AIMessageChunk))
    else:
        assert agent.invoke(messages)["messages"][-1].content == STEPS[-1]
    assert sorted(asked) == sorted(ASKED)
    script.check()
print("ok")
