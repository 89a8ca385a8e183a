"""Structured output of AutoGen's agents on random policies: only the gateway's grammar makes their answers valid."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any, Literal

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import CreateResult, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from structured_models import COUNTS, check_runs, model_of

pytestmark = [
    pytest.mark.usefixtures("closed_http_clients"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),  # AutoGen's own, of its model client
    pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning"),  # the answer has the name of the request
]


async def get_weather(city: Literal["Paris", "Rome"], days: int) -> str:
    """Get the weather of a city."""
    return f"sunny in {city} for {days} days"


def client() -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model="gpt-4o", api_key="sk-secret-of-the-agent")


@COUNTS
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("has_tools", [False, True], ids=["without tools", "with tools"])
async def test_output_content_type(tmp_path: Path, has_tools: bool, stream: bool, count: int) -> None:
    async def agent(task: Any) -> Any:
        tools: list[Any] = [FunctionTool(get_weather, "Get the weather of a city.", strict=True)] if has_tools else []
        assistant = AssistantAgent(
            "assistant",
            model_client=client(),
            system_message="Extract what the text says.",
            output_content_type=model_of(task),
            tools=tools,
            model_client_stream=stream,
        )
        return (await assistant.run(task=task["question"])).messages[-1].content  # pyright: ignore[reportAttributeAccessIssue]  # of a chat message

    await check_runs(tmp_path, agent, count)


@COUNTS
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_json_output(tmp_path: Path, stream: bool, count: int) -> None:
    async def agent(task: Any) -> Any:
        asked = [UserMessage(content=task["question"], source="user")]
        if stream:
            result = [part async for part in client().create_stream(asked, json_output=model_of(task))][-1]
        else:
            result = await client().create(asked, json_output=model_of(task))
        assert isinstance(result, CreateResult)
        return model_of(task).model_validate_json(str(result.content))

    await check_runs(tmp_path, agent, count)
