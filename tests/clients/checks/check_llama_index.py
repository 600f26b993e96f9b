"""llama-index: complete, chat, stream, tools, structured output."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


def model(max_tokens: int) -> OpenAILike:
    return OpenAILike(
        model="demo", api_base=f"{os.environ['SERVER_URL']}/v1", api_key="-", temperature=0,
        max_tokens=max_tokens, is_chat_model=True, is_function_calling_model=True, max_retries=0,
    )  # fmt: skip


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


class Person(BaseModel):
    """A person."""

    name: str
    is_old: bool


hello = [ChatMessage(role="user", content="Say hello.")]
answer = model(12).chat(hello).message.content
assert answer
assert "".join(part.delta or "" for part in model(12).stream_chat(hello)) == answer
assert model(12).complete("Say hello.").text == answer
long = model(200)
tools = [FunctionTool.from_defaults(add)]
called = long.chat_with_tools(tools, user_msg="Add 1 and 2.", tool_required=True)
(call,) = long.get_tool_calls_from_response(called)
assert (call.tool_name, set(call.tool_kwargs)) == ("add", {"first", "second"})
person = long.structured_predict(Person, PromptTemplate("Who is Ann?"))
assert isinstance(person, Person)
