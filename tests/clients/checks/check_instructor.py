"""instructor: an object of a class, through tools and through JSON schemas."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field
from scripted import URL, WEATHER, Script

ASK = [{"role": "user", "content": "Is the sky blue?"}]


class Verdict(BaseModel):
    is_true: bool
    certainty: int = Field(ge=0, le=100)


client = OpenAI(base_url=f"{os.environ['SERVER_URL']}/v1", api_key="-", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    verdict = instructor.from_openai(client, mode=mode).chat.completions.create(
        model="demo", messages=ASK, response_model=Verdict, max_tokens=300, max_retries=0
    )
    assert isinstance(verdict, Verdict)


# a loop of three steps: what to ask is an object of a class, then the answer is
class Question(BaseModel):
    city: str


class Report(BaseModel):
    weather: list[str]


said = {"weather": [WEATHER["Bonn"], WEATHER["Rome"]]}
steps = [[("Question", {"city": "Bonn"})], [("Question", {"city": "Rome"})], [("Report", said)]]
script = Script(steps)
scripted = instructor.from_openai(
    OpenAI(base_url=URL, api_key="-", max_retries=0, http_client=script.client()),
    mode=instructor.Mode.TOOLS,
)
messages, found = [{"role": "user", "content": "Weather?"}], []
for _ in range(2):
    question, answer = scripted.chat.completions.create_with_completion(
        model="demo", messages=messages, response_model=Question, max_retries=0
    )
    found.append(WEATHER[question.city])
    message = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": found[-1]}
    messages += [message.model_dump(exclude_none=True), result]
report = scripted.chat.completions.create(
    model="demo", messages=messages, response_model=Report, max_retries=0
)
assert report.weather == found == said["weather"]
# the same object, streamed
script = Script([[("Verdict", {"is_true": True, "certainty": 3})]])
scripted = instructor.from_openai(
    OpenAI(base_url=URL, api_key="-", max_retries=0, http_client=script.client()),
    mode=instructor.Mode.TOOLS,
)
parts = list(
    scripted.chat.completions.create_partial(
        model="demo", messages=ASK, response_model=Verdict, max_retries=0
    )
)
assert (parts[-1].is_true, parts[-1].certainty) == (True, 3)
print("ok")
