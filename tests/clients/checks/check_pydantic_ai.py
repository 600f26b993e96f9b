"""pydantic-ai: an agent with a tool and a result of a class, in one go and streamed."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scripted import ASKED, STEPS, URL, WEATHER, Script


class Report(BaseModel):
    """What the agent finds out."""

    cities: list[str]
    is_wet: bool


async def three_steps(*, streamed):
    script, asked = Script(), []
    provider = OpenAIProvider(base_url=URL, api_key="-", http_client=script.async_client())
    agent = Agent(OpenAIChatModel("demo", provider=provider))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return WEATHER[city]

    if streamed:
        async with agent.run_stream("Weather?") as run:
            output = "".join([part async for part in run.stream_text(delta=True)])
    else:
        output = (await agent.run("Weather?")).output
    assert output == STEPS[-1], output
    assert sorted(asked) == sorted(ASKED)
    script.check()


async def typed():
    """The result is a call of a tool that the package makes of the class."""
    script = Script((STEPS[0], [("final_result", {"cities": ["Bonn"], "is_wet": True})]))
    provider = OpenAIProvider(base_url=URL, api_key="-", http_client=script.async_client())
    agent = Agent(OpenAIChatModel("demo", provider=provider), output_type=Report)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Weather of a city."""
        return WEATHER[city]

    assert (await agent.run("Weather?")).output == Report(cities=["Bonn"], is_wet=True)


async def main():
    await three_steps(streamed=False)
    await three_steps(streamed=True)
    await typed()


asyncio.run(main())
print("ok")
