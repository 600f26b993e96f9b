"""openai-agents: an agent with a tool, over chat completions and over responses."""

import asyncio
import os
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{os.environ['SERVER_URL']}/v1", api_key="-", max_retries=0)
cities = []


@function_tool
def get_weather(city: Literal["Bonn", "Rome"]) -> str:
    """Weather of a city."""
    cities.append(city)
    return "sunny"


async def main() -> None:
    # where an answer of the demo model is cut off after the tool's, responses end as incomplete
    for kind, ending in (
        (OpenAIChatCompletionsModel, "run_llm_again"),
        (OpenAIResponsesModel, "stop_on_first_tool"),
    ):
        model = kind(model="demo", openai_client=client)
        agent = Agent(
            name="a", instructions="Help.", model=model, tools=[get_weather],
            tool_use_behavior=ending,
            model_settings=ModelSettings(max_tokens=200, temperature=0, tool_choice="required"),
        )  # fmt: skip
        before = len(cities)
        result = await Runner.run(agent, "Weather?", max_turns=4)
        assert len(cities) > before
        assert isinstance(result.final_output, str)


asyncio.run(main())
print("ok")
