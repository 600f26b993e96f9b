"""langchain-openai: invoke, stream, tools, structured output."""

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

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
print("ok")
