"""Log handler: records AutoGen's event log as spans, for users who prefer a log handler.

It never raises into the agent. Events arrive after the step: these spans have no duration, and routing gets no caller
before a call. The instrumentor provides both, so the handler records nothing while it is on.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from autogen_core.logging import LLMCallEvent, LLMStreamEndEvent, ToolCallEvent
from opentelemetry import trace

from leyden.autogen._instrumentor import AutoGenInstrumentor
from leyden.autogen._steps import RUNS
from leyden.core.data import semconv
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.export import is_global
from leyden.core.tracing.spans.run_tree import Run


class LeydenLogHandler(logging.Handler):
    """Records model calls and tools: `logging.getLogger(EVENT_LOGGER_NAME).addHandler(LeydenLogHandler())`.

    The spans are children of AutoGen's own. A tool gets one only where AutoGen's own span of it goes to another
    provider. The logger must pass INFO.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        super().__init__(logging.INFO)
        self._provider = tracer_provider

    @quietly
    def emit(self, record: logging.LogRecord) -> None:
        event: Any = record.msg
        if AutoGenInstrumentor().is_instrumented_by_opentelemetry:
            return
        if isinstance(event, LLMCallEvent | LLMStreamEndEvent):
            self._model_call(event)
        elif isinstance(event, ToolCallEvent) and not is_global(self._provider):
            self._tool_call(event.kwargs)

    def _model_call(self, event: LLMCallEvent | LLMStreamEndEvent) -> None:
        response: dict[str, Any] = event.kwargs["response"]
        model = str(response.get("model") or "model")
        attributes = {
            semconv.OPERATION: "chat",
            semconv.REQUEST_STREAM: True if isinstance(event, LLMStreamEndEvent) else None,
            semconv.RESPONSE_MODEL: response.get("model"),
            semconv.RESPONSE_ID: response.get("id"),
            semconv.INPUT_TOKENS: event.prompt_tokens,
            semconv.OUTPUT_TOKENS: event.completion_tokens,
        }
        run, key = self._begin(model, event.kwargs)
        RUNS.open(run, f"chat {model}", attributes, provider=self._provider, kind=trace.SpanKind.CLIENT)
        RUNS.end(key)

    def _tool_call(self, fields: dict[str, Any]) -> None:
        name: str = fields["tool_name"]
        run, key = self._begin(name, fields)
        RUNS.open_tool(run, name, arguments=json.dumps(fields["arguments"], default=str), provider=self._provider)
        RUNS.end(key, attributes={semconv.TOOL_RESULT: fields["result"]})

    def _begin(self, name: str, fields: dict[str, Any]) -> tuple[Run, object]:
        key = object()
        run = RUNS.start(key, None, name)
        assert run is not None, "the key is new"
        run.agent = _agent(fields.get("agent_id"))
        return run, key


def _agent(agent_id: str | None) -> str | None:
    """Return the agent of AutoGen's own current span, else the recipient of the runtime's message."""
    attributes: Mapping[str, Any] = getattr(trace.get_current_span(), "attributes", None) or {}
    if semconv.AGENT_NAME in attributes or agent_id is None:
        return attributes.get(semconv.AGENT_NAME)
    return agent_id.partition("/")[0].rpartition("_")[0]
