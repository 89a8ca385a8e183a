import json
from typing import Any

import pytest

from leyden.core.algorithm.prompts.examples import (
    FEEDBACK,
    INPUTS,
    LONGEST_TEXT,
    MOST_CALLS,
    OUTPUTS,
    feedback,
    make_example,
    rendered,
    shortened,
)
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data import semconv
from leyden.core.data.failure import Failure
from leyden.core.data.prompts.edits import PromptComponent
from leyden.core.data.rollout import Rollout, Task
from leyden.core.data.span import Span, SpanStatus
from leyden.core.testing.factories import span

SYSTEM = PromptComponent(name="writer.system", agent="writer", node="draft", role="system", text="Write SQL.")


def call(
    answer: str | dict[str, Any] = "SELECT 1",
    *more: dict[str, Any],
    agent: str = "writer",
    node: str = "draft",
    **attributes: Any,
) -> Span:
    messages = [{"role": "system", "content": "Write SQL."}, {"role": "user", "content": "How many?"}, *more]
    found: dict[str, Any] = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
    return span(
        attributes={
            semconv.INPUT_MESSAGES: json.dumps(messages),
            semconv.OUTPUT_MESSAGES: json.dumps([found]),
            semconv.AGENT_NAME: agent,
            semconv.NODE: node,
            **attributes,
        }
    )


def result(
    *calls: Span, spans: tuple[Span, ...] = (), task: Task = "How many?", reward: float | None = 0.25, **more: Any
) -> RolloutResult:
    fields: dict[str, Any] = {"dimensions": {}, "failure": None, **more}
    rollout = Rollout(rollout_id="ro", input=task, start_time=0.0, status="succeeded")
    return RolloutResult(
        request=RolloutRequest(row=0), rollout=rollout, reward=reward, spans=(*calls, *spans), calls=calls, **fields
    )


def test_an_example_has_the_task_the_call_and_the_score_without_the_components_own_text() -> None:
    example = make_example(result(call()), "writer.system", SYSTEM)
    assert example[INPUTS]["task"] == "How many?"
    assert example[INPUTS]["model call"] == "user: How many?\nanswer: SELECT 1"
    assert example[OUTPUTS] == {"answer": "SELECT 1"}
    assert example[FEEDBACK] == "Score: 0.25."


def test_calls_of_other_agents_are_left_out_unless_the_gateway_replaced_the_component_there() -> None:
    edits = json.dumps([{"component": "writer.system", "own": "Write SQL."}])
    others = call("no", node="check"), call("yes", node="other", **{semconv.PROMPT_EDITS: edits})
    example = make_example(result(call("first"), *others), "writer.system", SYSTEM)
    assert list(example[INPUTS]) == ["task", "model call 1", "model call 2"]
    assert example[OUTPUTS]["answer"] == "yes"
    nothing = make_example(result(call(node="check")), "writer.system", SYSTEM)
    assert nothing[OUTPUTS] == {"note": "The agent made no model call with this text."}


def test_a_prompt_template_has_all_calls_with_all_messages() -> None:
    example = make_example(result(call(), call(agent="judge"), task={"q": "é"}), "prompt", None)
    assert example[INPUTS]["task"] == '{"q": "é"}'
    assert example[INPUTS]["model call 2"].startswith("system: Write SQL.\nuser: How many?")


def test_of_many_calls_the_first_and_the_last_are_shown() -> None:
    example = make_example(result(*(call(f"answer {n}") for n in range(20))), "prompt", None)
    shown = [text for name, text in example[INPUTS].items() if name != "task"]
    assert len(shown) == MOST_CALLS + 1
    assert shown[MOST_CALLS // 2] == "(14 calls are left out)"
    assert "answer 2" in shown[2] and "answer 17" in shown[4]


def test_tool_calls_are_shown() -> None:
    made = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "find", "arguments": '{"a": 1}'}}]}
    found = {"role": "tool", "tool_call_id": "1", "content": "3 rows"}
    example = make_example(result(call(made), call("3", made, found)), "prompt", None)
    assert 'answer: calls find({"a": 1})' in example[INPUTS]["model call 1"]
    assert "tool: 3 rows" in example[INPUTS]["model call 2"]


def test_feedback_has_reasons_dimensions_notes_tool_errors_and_failures() -> None:
    spans = (
        span(semconv.REWARD, {semconv.REWARD_VALUE: 0.25, semconv.REWARD_FEEDBACK: "The date is missing."}),
        span(semconv.MESSAGE, {semconv.CONTENT: "retrieved 3"}),
        span("tool", {semconv.TOOL_NAME: "find"}, status=SpanStatus(code="error", description="no table")),
        span("tool", {semconv.TOOL_NAME: "find"}, status=SpanStatus(code="error", description="no table")),
        span("tool", {semconv.TOOL_NAME: "find"}),
    )
    failure = Failure(kind="agent", type="ValueError", message="bad date")
    lines = feedback(result(spans=spans, dimensions={"exact": 0.25}, failure=failure)).splitlines()
    assert lines[:5] == [
        "Score: 0.25.",
        "Parts of the score: exact 0.25.",
        "Reason: The date is missing.",
        "Note: retrieved 3",
        "Tool error: find: no table",
    ]
    assert lines[5].startswith("The agent failed:") and "bad date" in lines[5]
    assert len(lines) == 6
    assert feedback(result(reward=None)) == "It has no score."


def test_the_result_of_the_agent_is_shown() -> None:
    example = make_example(result(call(), spans=(span(semconv.RESULT, {semconv.FINAL_OUTPUT: "7"}),)), "prompt", None)
    assert example[OUTPUTS] == {"answer": "SELECT 1", "result of the agent": "7"}


@pytest.mark.parametrize("length", [LONGEST_TEXT - 1, LONGEST_TEXT, LONGEST_TEXT + 1, 10 * LONGEST_TEXT])
def test_a_long_text_loses_its_middle(length: int) -> None:
    text = "".join(chr(97 + n % 26) for n in range(length))
    short = shortened(text)
    if length <= LONGEST_TEXT:
        assert short == text
    else:
        assert short.startswith(text[:100]) and short.endswith(text[-100:])
        assert f"[… {length - LONGEST_TEXT} characters …]" in short


def test_an_example_as_text_has_a_heading_for_each_part() -> None:
    text = rendered(make_example(result(call()), "writer.system", SYSTEM), level=4)
    assert text.splitlines()[:2] == [f"#### {INPUTS}", "task: How many?"]
    assert f"#### {FEEDBACK}\nScore: 0.25." in text
