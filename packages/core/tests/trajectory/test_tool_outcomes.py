import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.testing import factories
from leyden.core.testing.gateway_bench import GatewayBench, Turn
from leyden.core.trajectory.outcomes import ToolOutcome, tool_outcomes


def span(
    span_id: str, start: float, parent: str | None, attributes: Attributes, status: SpanStatus | None = None
) -> Span:
    return factories.span(
        span_id, attributes, span_id=span_id, parent_id=parent, status=status or SpanStatus(), start_time=start
    )


def agent(span_id: str, start: float, parent: str | None = None) -> Span:
    return span(span_id, start, parent, {semconv.OPERATION: "invoke_agent"})


def call(
    span_id: str, start: float, parent: str | None = None, asks: tuple[tuple[str | None, str], ...] = (), **more: Any
) -> Span:
    """A recorded call that asks for tools, each by its call id and name."""
    calls = [{"id": i, "type": "function", "function": {"name": name, "arguments": "{}"}} for i, name in asks]
    written = [{"role": "assistant", "content": "Hm.", "tool_calls": calls}]
    attributes: Attributes = {semconv.CALL_ID: span_id, semconv.OUTPUT_MESSAGES: json.dumps(written)}
    if "read" in more:
        attributes[semconv.INPUT_MESSAGES] = json.dumps(more["read"])
    return span(span_id, start, parent, attributes, more.get("status"))


def tool(
    span_id: str, start: float, parent: str | None = None, name: str = "add", call_id: str | None = None, **more: Any
) -> Span:
    attributes: Attributes = {semconv.OPERATION: "execute_tool", semconv.TOOL_NAME: name, **more.get("attributes", {})}
    if call_id is not None:
        attributes[semconv.TOOL_CALL_ID] = call_id
    return span(span_id, start, parent, attributes, more.get("status"))


def owners(spans: list[Span]) -> dict[str | None, str | None]:
    """Tool span to the call that it belongs to."""
    outcomes = tool_outcomes(spans)
    owned: dict[str | None, str | None] = {one.span_id: None for one in outcomes.unrequested}
    return owned | {one.span_id: call_id for call_id, own in outcomes.by_call.items() for one in own}


def test_a_tool_belongs_to_the_call_that_wrote_its_id_wherever_it_ran() -> None:
    spans = [
        agent("left", 0),
        agent("right", 0),
        call("one", 1, "left", (("a", "add"),)),
        call("two", 1, "right", (("b", "add"),)),
        tool("for b", 2, "left", call_id="b"),
        tool("for a", 2, "right", call_id="a"),
    ]
    assert owners(spans) == {"for a": "one", "for b": "two"}


def test_of_calls_that_wrote_the_same_id_the_latest_before_the_tool_counts() -> None:
    calls = [call(name, start, None, (("a", "add"),)) for name, start in (("one", 1), ("two", 3), ("three", 5))]
    assert owners([*calls, tool("t", 4, call_id="a")]) == {"t": "two"}
    assert owners([*calls, tool("t", 0, call_id="a")]) == {"t": "one"}


def test_without_an_id_nesting_then_name_then_time_decide() -> None:
    spans = [
        agent("team", 0),
        agent("left", 0, "team"),
        agent("right", 0, "team"),
        call("left asks", 1, "left", ((None, "add"),)),
        call("right says", 2, "right"),
        call("right asks", 3, "right", ((None, "add"),)),
        call("right asks for more", 4, "right", ((None, "multiply"),)),
        tool("in left", 5, "left"),
        tool("in right", 5, "right"),
        tool("in right, other", 5, "right", name="search"),
        tool("before all", 0.5, "right"),
    ]
    assert owners(spans) == {
        "in left": "left asks",
        "in right": "right asks",
        "in right, other": "right says",
        "before all": None,
    }


def test_an_agent_as_a_tool_belongs_to_the_outer_call_and_its_tools_to_the_inner_one() -> None:
    spans = [
        agent("outer", 0),
        call("asks for help", 1, "outer", ((None, "helper"),)),
        tool("helps", 2, "outer", name="helper"),
        agent("helper", 3, "helps"),
        call("asks to add", 4, "helper", ((None, "add"),)),
        tool("adds", 5, "helper"),
    ]
    assert owners(spans) == {"helps": "asks for help", "adds": "asks to add"}


def test_a_call_that_failed_asked_for_nothing() -> None:
    failed = call("failed", 2, status=SpanStatus(code="error"))
    assert owners([call("said", 1), failed, tool("t", 3)]) == {"t": "said"}


def test_where_the_framework_has_a_span_for_the_call_its_clock_counts() -> None:
    view = span("view", 1, None, {semconv.OPERATION: "chat"})
    spans = [view, call("one", 100, "view", ((None, "add"),)), tool("t", 2)]
    assert owners(spans) == {"t": "one"}


@pytest.mark.parametrize(
    ("attributes", "status", "expected"),
    [
        ({semconv.TOOL_RESULT: "14"}, SpanStatus(), ("returned", "14", None)),
        ({}, SpanStatus(code="ok"), ("returned", None, None)),
        ({semconv.ERROR_TYPE: "ValueError"}, SpanStatus(code="error", description="no"), ("failed", None, "no")),
        ({semconv.ERROR_TYPE: "ValueError"}, SpanStatus(), ("failed", None, "ValueError")),
        ({semconv.TOOL_RESULT: "half"}, SpanStatus(code="error"), ("failed", "half", "")),
    ],
)
def test_how_a_tool_ended(attributes: Attributes, status: SpanStatus, expected: tuple[Any, ...]) -> None:
    spans = [call("one", 1, None, (("a", "add"),)), tool("t", 2, call_id="a", attributes=attributes, status=status)]
    (outcome,) = tool_outcomes(spans).by_call["one"]
    assert (outcome.status, outcome.result, outcome.error) == expected
    assert (outcome.tool, outcome.call_id, outcome.span_id) == ("add", "a", "t")


def test_a_tool_without_a_span_is_read_from_the_conversation() -> None:
    answered = [{"role": "tool", "tool_call_id": "a", "content": "14"}]
    spans = [
        call("one", 1, None, (("a", "add"), ("b", "add"), ("c", "add"))),
        tool("t", 2, call_id="b"),
        call("two", 3, read=answered),
        call("three", 4, read=[{"role": "tool", "tool_call_id": "a", "content": "later"}]),
    ]
    outcomes = tool_outcomes(spans).by_call
    assert [(one.span_id, one.status, one.result) for one in outcomes["one"]] == [
        ("t", "returned", None),
        (None, "unknown", "14"),
    ]
    assert outcomes["two"] == outcomes["three"] == ()


def test_what_cannot_be_read_is_no_reason_to_fail() -> None:
    odd = [b"\xff", "{", '"text"', '[{"tool_calls": [3, {"function": 4}, {"function": {}}]}]', '[{"tool_calls": 1}]', 7]
    for written in odd:
        recorded = span("one", 1, None, {semconv.CALL_ID: "c", semconv.OUTPUT_MESSAGES: written})
        assert tool_outcomes([recorded]).by_call == {"one": ()}


# --- Whatever the trees are

IDS = st.sampled_from("abcdef")
SPANS = st.lists(
    st.tuples(st.sampled_from(["agent", "call", "tool"]), st.integers(0, 5), st.integers(0, 12), IDS, st.booleans()),
    max_size=12,
)


def build(drawn: list[tuple[str, int, int, str, bool]]) -> list[Span]:
    spans: list[Span] = []
    for place, (kind, start, parent, call_id, known) in enumerate(drawn):
        name, above = f"{kind} {place}", None
        if parent < len(drawn):
            above = f"{drawn[parent][0]} {parent}"
        if kind == "agent":
            spans.append(agent(name, start, above))
        elif kind == "call":
            spans.append(call(name, start, above, ((call_id, "add"),) if known else ()))
        else:
            spans.append(tool(name, start, above, call_id=call_id if known else None))
    return spans


@given(SPANS, st.randoms())
def test_every_tool_is_somewhere_once_in_whatever_order_spans_are_given(drawn: Any, random: Any) -> None:
    spans = build(drawn)
    outcomes = tool_outcomes(spans)
    told = [one.span_id for own in (outcomes.unrequested, *outcomes.by_call.values()) for one in own]
    assert sorted(filter(None, told)) == sorted(one.span_id for one in spans if one.span_id.startswith("tool"))
    assert set(outcomes.by_call) == {one.span_id for one in spans if one.span_id.startswith("call")}
    random.shuffle(spans)
    again = tool_outcomes(spans)
    assert (dict(again.by_call), again.unrequested) == (dict(outcomes.by_call), outcomes.unrequested)


@given(SPANS)
def test_an_id_that_one_call_wrote_decides(drawn: Any) -> None:
    spans = build(drawn)
    wrote = {call_id: f"call {n}" for n, (kind, _, _, call_id, known) in enumerate(drawn) if kind == "call" and known}
    once = [d[3] for d in drawn if d[0] == "call" and d[4]]
    found = owners(spans)
    for place, (kind, _, _, call_id, known) in enumerate(drawn):
        if kind == "tool" and known and once.count(call_id) == 1:
            assert found[f"tool {place}"] == wrote[call_id]


# --- As the gateway really records it


def asks_twice(conversation: list[Turn]) -> str:
    if any(turn.role == "tool" for turn in conversation):
        return "Done."
    return "".join(
        f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': {'number': number}})}\n</tool_call>\n"
        for number in (1, 2)
    )


PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}}


def chat(client: Any) -> list[str]:
    tools = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
    messages: list[Any] = [{"role": "user", "content": "Add."}]
    message = client.chat.completions.create(model="any", messages=messages, tools=tools).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    ids = [one.id for one in message.tool_calls]
    messages += [{"role": "tool", "tool_call_id": one, "content": f"result {n}"} for n, one in enumerate(ids)]
    client.chat.completions.create(model="any", messages=messages, tools=tools)
    return ids


def responses(client: Any) -> list[str]:
    tools = [{"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}]
    first = client.responses.create(model="any", input="Add.", tools=tools)
    ids = [item.call_id for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": one, "output": f"result {n}"} for n, one in enumerate(ids)]
    client.responses.create(model="any", input=outputs, previous_response_id=first.id, tools=tools)
    return ids


@pytest.mark.integration
@pytest.mark.parametrize("ask", [chat, responses])
async def test_both_dialects_are_read(ask: Any) -> None:
    bench = GatewayBench(asks_twice)
    bench.start()
    try:
        attempt = await bench.attempt("x")
        with OpenAI(base_url=f"{bench.url}/a/{attempt.token}/v1", api_key="unused", max_retries=0) as client:
            ids = ask(client)
        first, second = await bench.spans(attempt)
        ran = tool("ran", first.start_time + 0.001, name="add", call_id=ids[1], attributes={semconv.TOOL_RESULT: "2"})
        outcomes = tool_outcomes([first, second, ran]).by_call
    finally:
        bench.stop()
    assert outcomes[second.span_id] == ()
    assert outcomes[first.span_id] == (
        ToolOutcome(tool="add", status="returned", result="2", call_id=ids[1], span_id="ran"),
        ToolOutcome(tool="add", status="unknown", result="result 0", arguments='{"number": 1}', call_id=ids[0]),
    )
