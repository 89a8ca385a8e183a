"""Agents on AutoGen's own replayed model, and what they are asked with."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

from leyden.autogen import AutoGenInstrumentor
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.spans.export import CONTENT

Replay = Callable[..., ReplayChatCompletionClient]


@pytest.fixture
def replay() -> Replay:
    """Makes a model that gives one answer after the other: a text, or `("tool", {...})` for a call of a tool."""

    def answer(given: str | tuple[str, dict[str, Any]]) -> str | CreateResult:
        if isinstance(given, str):
            return given
        call = FunctionCall(id="call-1", name=given[0], arguments=json.dumps(given[1]))
        usage = RequestUsage(prompt_tokens=3, completion_tokens=2)
        return CreateResult(content=[call], finish_reason="function_calls", usage=usage, cached=False)

    def make(*answers: str | tuple[str, dict[str, Any]]) -> ReplayChatCompletionClient:
        info = ModelInfo(
            vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
        )
        return ReplayChatCompletionClient([answer(given) for given in answers], info)

    return make


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> SpanTape:
    """A backend that is told everything."""
    monkeypatch.setenv(CONTENT, "true")
    return SpanTape()


@pytest.fixture
def instrumented(tape: SpanTape) -> Iterator[None]:
    """AutoGen, recorded on the tape."""
    AutoGenInstrumentor().instrument(tracer_provider=tape.provider)
    yield
    AutoGenInstrumentor().uninstrument()
