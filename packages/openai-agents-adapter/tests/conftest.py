"""A model of the SDK's kind that writes what a test tells it to, and a trace provider of the test's own."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeAlias

import pytest
from agents import Model, ModelResponse, ModelTracing, Usage, generation_span, set_trace_provider
from agents.tracing import get_trace_provider
from agents.tracing.provider import DefaultTraceProvider
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

Turn: TypeAlias = str | tuple[str, dict[str, Any]] | Exception
"""A text, a tool to call with its arguments, or an error to raise."""
MakeModel: TypeAlias = Callable[..., Model]


class Scripted(Model):
    """Takes the turns in order, and the last one again and again."""

    def __init__(self, *turns: Turn) -> None:
        self._turns = list(turns)
        self.heard: list[Any] = []

    async def get_response(self, *args: Any, **given: Any) -> ModelResponse:
        turn = self._next(given["input"], given["tracing"])
        return ModelResponse(output=[turn], usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **given: Any) -> AsyncIterator[Any]:
        _, heard, _, _, _, _, tracing = args  # the SDK gives them by position here, and by name above
        response = Response(
            id="resp-1",
            created_at=0,
            model="scripted",
            object="response",
            output=[self._next(heard, tracing)],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)

    def _next(self, heard: Any, tracing: ModelTracing) -> Any:
        with generation_span(model="scripted", disabled=tracing.is_disabled()) as span:
            self.heard.append(heard)
            turn = self._turns[0] if len(self._turns) == 1 else self._turns.pop(0)
            span.span_data.usage = {"input_tokens": 3, "output_tokens": 2}
            if isinstance(turn, Exception):
                raise turn
            return written(turn)


def written(turn: str | tuple[str, dict[str, Any]]) -> Any:
    if isinstance(turn, str):
        text = ResponseOutputText(text=turn, type="output_text", annotations=[])
        return ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
    name, arguments = turn
    return ResponseFunctionToolCall(
        arguments=json.dumps(arguments), call_id=f"call-{name}", name=name, type="function_call"
    )


@pytest.fixture
def make_model() -> MakeModel:
    return Scripted


@pytest.fixture
def untouched() -> Iterator[None]:
    """A trace provider of the test's own, without the exporter to OpenAI."""
    before = get_trace_provider()
    set_trace_provider(DefaultTraceProvider())
    yield
    set_trace_provider(before)
