"""Structured output of the SDK's agents on random policies: only the gateway's grammar makes their answers valid."""

# The SDK's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any, Literal

import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from structured_models import COUNTS, check_runs, model_of

pytestmark = pytest.mark.usefixtures("untouched", "closed_http_clients")

MAX_TURNS = 100
"""A random policy may choose its tool in many turns before it answers."""


@function_tool
def get_weather(city: Literal["Paris", "Rome"], days: int) -> str:
    """Get the weather of a city.

    Args:
        city: Where.
        days: For how many days.
    """
    return f"sunny in {city} for {days} days"


@COUNTS
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("tools", [[], [get_weather]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_output_type(tmp_path: Path, kind: Any, tools: list[Any], stream: bool, count: int) -> None:
    async def agent(task: Any) -> Any:
        extractor = Agent(
            name="Extractor",
            instructions="Extract what the text says.",
            model=kind("gpt-4.1-mini", AsyncOpenAI(api_key="sk-secret-of-the-agent")),
            output_type=model_of(task),
            tools=tools,
        )
        if not stream:
            return (await Runner.run(extractor, task["question"], max_turns=MAX_TURNS)).final_output
        result = Runner.run_streamed(extractor, task["question"], max_turns=MAX_TURNS)
        async for _ in result.stream_events():
            pass
        return result.final_output

    await check_runs(tmp_path, agent, count)
