"""Structured output of LangChain's agents on random policies: only the gateway's grammar makes their answers valid."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnknownLambdaType=false

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import LengthFinishReasonError
from pydantic import Field
from structured_models import COUNTS, Plan, check_runs, instance, model_of, option_of

pytestmark = [
    pytest.mark.usefixtures("closed_http_clients"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),  # LangChain's own, of its streams
]
LLMS: tuple[Callable[..., ChatOpenAI], ...] = (
    lambda **more: ChatOpenAI(model="gpt-4.1-mini", **more),
    lambda **more: ChatOpenAI(model="gpt-4.1-mini", use_responses_api=True, **more),
)


@pytest.fixture(autouse=True)
def api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-agent")


@tool
def get_weather(city: Literal["Paris", "Rome"], days: int = Field(default=1, ge=1, le=7)) -> str:
    """Get the weather of a city."""
    return f"sunny in {city} for {days} days"


def several_answers(result: Any) -> bool:
    """Whether LangChain refused an answer with several structured responses, after which it may end the agent."""
    texts = [message.text for message in result["messages"] if isinstance(message, ToolMessage)]
    return any("multiple structured responses" in text for text in texts)


@COUNTS
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_with_structured_output(tmp_path: Path, method: Any, stream: bool, count: int) -> None:
    options = list(itertools.product((None, True), LLMS))

    async def agent(task: Any) -> Any:
        strict, llm = option_of(task, options)
        chain = llm().with_structured_output(model_of(task), method=method, strict=strict)
        if not stream:
            return await chain.ainvoke(task["question"])
        return [part async for part in chain.astream(task["question"])][-1]

    await check_runs(tmp_path, agent, count)


@COUNTS
async def test_json_mode_writes_an_object_unless_it_is_cut(tmp_path: Path, count: int) -> None:
    """The policy chooses the object's keys, so it fits no model; an object without end is cut as with a provider."""

    async def agent(task: Any) -> Any:
        chain = LLMS[0]().with_structured_output(model_of(task), method="json_mode", include_raw=True)
        try:
            return await chain.ainvoke(f"{task['question']} Answer in JSON.")
        except LengthFinishReasonError:
            return None

    def score(task: Any, result: Any) -> float:
        return 0.0 if result is None else float(isinstance(json.loads(result["raw"].text), dict))

    await check_runs(tmp_path, agent, count, score)


ONE_CALL = {"model_kwargs": {"parallel_tool_calls": False}}
"""Fields of a model that calls one tool at a time. LangChain sends an answer as a tool's arguments."""


@COUNTS
@pytest.mark.parametrize("tools", [[], [get_weather]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy, None])
async def test_response_format(tmp_path: Path, strategy: Any, tools: list[Any], count: int) -> None:
    async def agent(task: Any) -> Any:
        model = model_of(task)
        llm = option_of(task, LLMS)(**ONE_CALL if tools or strategy is ToolStrategy else {})
        graph = create_agent(llm, tools, response_format=strategy(model) if strategy else model)
        return await graph.ainvoke({"messages": [{"role": "user", "content": task["question"]}]})

    await check_runs(tmp_path, agent, count, lambda task, result: instance(task, result["structured_response"]))


async def test_several_answers_at_once_are_refused_by_the_framework(tmp_path: Path) -> None:
    """Its default allows several calls in one answer; the agent then tries again, or ends without a response."""

    async def agent(task: Any) -> Any:
        graph = create_agent(LLMS[0](), [], response_format=ToolStrategy(model_of(task)))
        return await graph.ainvoke({"messages": [{"role": "user", "content": task["question"]}]})

    def score(task: Any, result: Any) -> float:
        found = result["structured_response"]
        return 0.0 if found is None and several_answers(result) else instance(task, found)

    await check_runs(tmp_path, agent, 8, score)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_an_answer_that_is_cut_is_the_error_of_the_framework(tmp_path: Path, method: Any) -> None:
    chain = LLMS[0](max_tokens=10).with_structured_output(Plan, method=method, include_raw=True)

    async def agent(task: Any) -> Any:
        try:
            return (await chain.ainvoke(task["question"]))["raw"].response_metadata["finish_reason"]
        except LengthFinishReasonError:
            return "length"

    def score(task: Any, result: Any) -> float:
        assert result == "length" and model_of(task)
        return 1.0

    await check_runs(tmp_path, agent, 8, score)
