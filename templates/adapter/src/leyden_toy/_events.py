"""What toy agents tell, as spans and as "who speaks now". Never raises into the agent. Knows nothing of tokens."""

import json
from typing import Any

from opentelemetry.trace import SpanKind, TracerProvider

from leyden.core.data import semconv
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import RunTree

_RUNS = RunTree("toy")


@quietly
def heard(event: Any, provider: TracerProvider | None = None) -> None:
    """Begin or end a run of the framework's. Called in the context of the agent, before it goes on."""
    if event.ended:
        result = None if event.result is None else str(event.result)
        _RUNS.end(event.id, event.error, {semconv.TOOL_RESULT: result} if event.kind == "tool" else None)
        return
    run = _RUNS.start(event.id, event.parent, event.name)
    if run is None:
        return
    if event.kind == "team":
        _RUNS.open_workflow(run, event.name, provider=provider)
    elif event.kind == "agent":
        _RUNS.open_agent(run, event.name, provider=provider)
    elif event.kind == "tool":
        arguments = json.dumps(event.arguments)
        _RUNS.open_tool(run, event.name, call_id=event.call_id, arguments=arguments, provider=provider)
    else:
        known = {semconv.OPERATION: "chat", semconv.PROVIDER: "openai", semconv.REQUEST_MODEL: event.name}
        _RUNS.open(run, f"chat {event.name}", known, provider=provider, kind=SpanKind.CLIENT)
