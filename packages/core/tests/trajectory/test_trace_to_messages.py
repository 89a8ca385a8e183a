import json

from leyden.core.data import semconv
from leyden.core.data.span import Attributes
from leyden.core.testing.factories import span
from leyden.core.trajectory.trace_to_messages import TraceToMessages

READ = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
ANSWERED = [{"role": "assistant", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "find"}}]


def test_each_recorded_call_is_a_conversation() -> None:
    recorded: Attributes = {
        semconv.CALL_ID: "c",
        semconv.INPUT_MESSAGES: json.dumps(READ),
        semconv.OUTPUT_MESSAGES: json.dumps(ANSWERED),
    }
    spans = [
        span(attributes=recorded),
        span(semconv.REWARD, {semconv.REWARD_VALUE: 1.0}),
        span(attributes={**recorded, semconv.TOOL_DEFINITIONS: json.dumps(TOOLS)}),
        span(attributes={semconv.INPUT_MESSAGES: json.dumps(READ)}),
    ]
    assert TraceToMessages().adapt(spans) == [
        {"messages": [*READ, *ANSWERED], "tools": None},
        {"messages": [*READ, *ANSWERED], "tools": TOOLS},
    ]


def test_a_call_without_messages_is_empty() -> None:
    assert TraceToMessages().adapt([span(attributes={semconv.CALL_ID: "c"})]) == [{"messages": [], "tools": None}]
