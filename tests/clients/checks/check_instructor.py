"""instructor: an object of a class, through tools and through JSON schemas."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel

ASK = [{"role": "user", "content": "Is the sky blue?"}]


class Verdict(BaseModel):
    is_true: bool
    certainty: int


client = OpenAI(base_url=f"{os.environ['SERVER_URL']}/v1", api_key="-", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    verdict = instructor.from_openai(client, mode=mode).chat.completions.create(
        model="demo", messages=ASK, response_model=Verdict, max_tokens=300, max_retries=0
    )
    assert isinstance(verdict, Verdict)
print("ok")
