import traceback
from io import StringIO

import msgspec
from msgspec.structs import replace
from rich.console import Console

from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.testing import factories
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trainer.rollouts.tree import describe, rollout_tree

ROLLOUT = Rollout(rollout_id="r1", input={"question": "[bold]2+2?[/]"}, start_time=0.0, status="succeeded")
ATTEMPT = Attempt(rollout_id="r1", attempt_id="a1", sequence_id=1, start_time=0.0, end_time=1.5, status="succeeded")


def span(number: int, name: str, parent: int | None = None, attributes: Attributes | None = None) -> Span:
    return factories.span(
        name,
        attributes,
        rollout_id="r1",
        attempt_id="a1",
        sequence_id=number,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        start_time=float(number),
        end_time=number + 0.25,
    )


def render(*spans: Span, attempt: Attempt = ATTEMPT, width: int = 160) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(rollout_tree(RecordedRollout(rollout=ROLLOUT, attempts=[(attempt, list(spans))])))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_tree_follows_parents_and_shows_calls_tools_and_rewards() -> None:
    call: Attributes = {
        semconv.CALL_ID: "c",
        semconv.INPUT_TOKENS: 120,
        semconv.OUTPUT_TOKENS: 23,
        semconv.POLICY: "policy",
        semconv.POLICY_VERSION: 4,
        semconv.FINISH_REASONS: ["tool_calls"],
    }
    tool: Attributes = {
        semconv.OPERATION: "execute_tool",
        semconv.TOOL_NAME: "calculator",
        semconv.TOOL_ARGUMENTS: '{"e": "2+2"}',
        semconv.TOOL_RESULT: "4",
    }
    reward: Attributes = {
        semconv.REWARD_VALUE: 1.0,
        semconv.REWARD_DIMENSION + "exact": 1.0,
        semconv.REWARD_FEEDBACK: "the sum is right",
    }
    text = render(
        span(1, "invoke_agent mathy"),
        span(2, "chat", 1, call),
        span(3, "execute_tool", 1, tool),
        span(4, semconv.REWARD, None, reward),
    )
    lines = [line.strip() for line in text.splitlines()]
    indent = {key: next(line for line in text.splitlines() if key in line).index(key) for key in ("invoke", "120 → 23")}
    assert indent["120 → 23"] > indent["invoke"]
    assert any("120 → 23 tokens  policy v4  tool_calls" in line for line in lines)
    assert any('tool calculator({"e": "2+2"}) → 4' in line for line in lines)
    assert any("reward 1.0  (exact 1)  the sum is right" in line for line in lines)
    assert "[bold]2+2?[/]" in text


def test_a_call_that_saw_an_update_names_every_version() -> None:
    call: Attributes = {semconv.CALL_ID: "c", semconv.POLICY_VERSION: 4, semconv.POLICY_VERSIONS: [4, 20, 5, 3]}
    assert "policy v4 → v5" in render(span(1, "chat", None, call))


def test_a_call_says_what_was_to_answer_it() -> None:
    call: Attributes = {semconv.CALL_ID: "c", semconv.REQUEST_MODEL: "gpt-4.1"}
    refused: Attributes = {semconv.POLICY: "policy", semconv.RESPONSE_MODEL: "policy", semconv.NOT_TRAINED: "refused"}
    assert "chat  (not trained: refused)" in render(span(1, "chat", None, {**call, **refused}))
    assert "tokens  upstream gpt-4.1  " in render(span(1, "chat", None, {**call, semconv.RESPONSE_MODEL: "gpt-4.1"}))
    replaced = render(span(1, "chat", None, {**call, semconv.RESPONSE_MODEL: "local"}))
    assert "tokens  upstream local (asked for gpt-4.1)" in replaced


def test_a_framework_s_view_of_a_call_gives_way_to_the_record_of_it() -> None:
    messages = '[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"add","arguments":"{}"}}]}]'
    call: Attributes = {semconv.CALL_ID: "c", semconv.OUTPUT_MESSAGES: messages}
    text = render(span(1, "chat gpt", None, {semconv.OPERATION: "chat"}), span(2, "chat", 1, call))
    assert "chat gpt" not in text
    assert "add({})" in text


def test_a_traceback_begins_in_the_users_code_and_is_shown_once() -> None:
    user = f'  File "{__file__}", line 7, in agent\n    return d["[lost]"]\n'
    stack = f'Traceback (most recent call last):\n  File "{traceback.__file__}", line 1, in f\n{user}KeyError: 1\n'
    raised = span(1, semconv.EXCEPTION, None, {semconv.STACK_TRACE: stack})
    text = render(raised, span(2, "again", 1, {semconv.STACK_TRACE: stack}))
    assert text.count("line 7, in agent") == text.count('return d["[lost]"]') == 1
    assert "traceback.py" not in text


def test_what_is_run_without_training_does_not_say_not_trained() -> None:
    call: Attributes = {semconv.CALL_ID: "c", semconv.NOT_TRAINED: "answered by an upstream"}
    tried = RecordedRollout(
        rollout=msgspec.structs.replace(ROLLOUT, mode="test"), attempts=[(ATTEMPT, [span(1, "chat", None, call)])]
    )
    console = Console(file=StringIO(), width=160)
    console.print(rollout_tree(tried))
    assert isinstance(console.file, StringIO)
    assert "not trained" not in console.file.getvalue()
    assert "(not trained: answered by an upstream)" in render(span(1, "chat", None, call))


def test_result_and_reward_come_last() -> None:
    text = render(span(1, semconv.RESULT, None, {semconv.RESULT: "4"}), span(2, "invoke_agent"))
    assert text.index("invoke_agent") < text.index(semconv.RESULT)


def test_a_span_whose_parent_was_lost_is_shown_all_the_same() -> None:
    assert "orphan" in render(span(1, "root"), span(2, "orphan", 9))


def test_an_attempt_without_spans_says_so_and_shows_its_error() -> None:
    failed = Attempt(
        rollout_id="r1",
        attempt_id="a1",
        sequence_id=1,
        start_time=0.0,
        status="failed",
        metadata={"error": {"kind": "agent", "type": "ValueError", "message": "unlucky"}},
    )
    text = render(attempt=failed)
    assert "ValueError: unlucky" in text
    assert "no spans" in text


LONG = "Unsupported parameter: " + ", ".join(f"'parameter_{n}'" for n in range(40)) + " is the last of them."


def failing(number: int, name: str, description: str, parent: int | None = None, type: str = "BadRequestError") -> Span:
    status = SpanStatus(code="error", description=description)
    return replace(span(number, name, parent, {semconv.ERROR_TYPE: type}), status=status)


def failed_attempt(**error: str) -> Attempt:
    return replace(ATTEMPT, status="failed", metadata={"error": error})


def test_an_error_is_whole_where_it_comes_first_and_its_type_elsewhere() -> None:
    wrapped = f"Error code: 400 - {{'error': {{'message': '{LONG}'}}}}"
    text = render(
        failing(1, "invoke_agent solver", wrapped),
        failing(2, "chat", LONG, 1, type="unsupported_parameter"),
        failing(3, "execute_tool", "another\nerror", 1, type="ToolError"),
        failing(4, semconv.EXCEPTION, wrapped),
        failing(5, semconv.RESULT, wrapped),
        attempt=failed_attempt(kind="agent", type="BadRequestError", message=wrapped),
        width=80,
    )
    unwrapped = " ".join(text.replace("│", " ").split())
    assert f"agent error: BadRequestError: {wrapped}" in unwrapped
    assert unwrapped.count("is the last of them") == 1
    assert "failed: unsupported_parameter" in unwrapped
    assert "failed: another error" in unwrapped
    assert unwrapped.count("failed: BadRequestError") == 3
    assert "…" not in text


def test_an_error_of_leydens_own_words_needs_no_class() -> None:
    waits = "the agent waits for human input (may I?), and Leyden runs it unattended"
    assert f"agent error: {waits}" in render(
        attempt=failed_attempt(kind="agent", type="UnknownAgent", message=waits), width=200
    )
    assert "timeout error: no result within 5 s" in render(
        attempt=failed_attempt(kind="timeout", type="TimeoutError", message="no result within 5 s")
    )


def test_an_attempt_that_lacks_a_key_says_what_to_do() -> None:
    error = failed_attempt(kind="agent", type="KeyError", message="'MISTRAL_API_KEY'")
    assert "such as MISTRAL_API_KEY=unused" in render(attempt=error, width=300)


def test_a_failed_span_says_why() -> None:
    failed = factories.span("chat m", status=SpanStatus(code="error", description="boom"))
    assert describe(failed) == "chat m  failed: boom"
