"""What is computed of two variants' rollouts, from records made by hand."""

from typing import Any, Literal

import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import PromptTemplate
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span, SpanStatus
from leyden.core.errors import UsageError
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trainer.run_folder.comparison import bootstrap_interval
from leyden.core.trainer.services.prompt_trial import PromptTrial, VariantName, check_variants, compare_variants

EDITS = PromptEdits(components=(PromptComponent(name="system", role="system", text="Do it.", new_text="Do it well."),))
CHANGED = {"prompts": EDITS}


def span(number: int, name: str, attributes: dict[str, Any], status: Literal["ok", "error"] = "ok") -> Span:
    return Span(
        rollout_id="r",
        attempt_id="a",
        sequence_id=number,
        trace_id="0" * 32,
        span_id=f"{number:016x}",
        name=name,
        start_time=float(number),
        end_time=number + 0.5,
        status=SpanStatus(code=status),
        attributes=attributes,
    )


def call(
    number: int,
    *,
    tokens: tuple[int, int] | None = (100, 10),
    edited: bool = False,
    status: Literal["ok", "error"] = "ok",
) -> Span:
    attributes: dict[str, Any] = {semconv.CALL_ID: f"c{number}", semconv.RESPONSE_MODEL: "m"}
    if tokens is not None:
        attributes |= {semconv.INPUT_TOKENS: tokens[0], semconv.OUTPUT_TOKENS: tokens[1]}
    if edited:
        replaced = [{"component": "system", "role": "system", "own": "Do it."}]
        attributes[semconv.PROMPT_EDITS] = msgspec.json.encode(replaced).decode()
    return span(number, "chat m", attributes, status)


def rollout(*spans: Span, reward: float | None = None, kind: str = "", seconds: float = 2.0) -> RecordedRollout:
    rewards = [] if reward is None else [span(90, semconv.REWARD, {semconv.REWARD_VALUE: reward})]
    status = "failed" if kind else "succeeded"
    metadata = {"error": {"kind": kind, "type": "E", "message": "it broke"}} if kind else {}
    attempt = Attempt(
        rollout_id="r",
        attempt_id="a",
        sequence_id=1,
        start_time=0.0,
        end_time=seconds,
        status=status,
        metadata=metadata,
    )
    found = Rollout(rollout_id="r", input={"q": 1}, start_time=0.0, status=status)
    return RecordedRollout(rollout=found, attempts=[(attempt, [*spans, *rewards])])


def trial(a: list[list[RecordedRollout]], b: list[list[RecordedRollout]], cost: float | None = 0.5) -> PromptTrial:
    """Compare rollouts given by task and repeat; variant B replaces a text."""
    variants: dict[VariantName, list[list[RecordedRollout]]] = {"a": a, "b": b}
    recorded: dict[tuple[VariantName, int, int], RecordedRollout] = {
        (variant, row, repeat): one
        for variant, tasks in variants.items()
        for row, repeats in enumerate(tasks)
        for repeat, one in enumerate(repeats)
    }

    def price(_call: Span) -> float | None:
        return cost

    return compare_variants([{"q": 1}] * len(a), len(a[0]), {"a": {}, "b": CHANGED}, recorded, price)


def test_repeats_are_averaged_before_tasks_are_paired() -> None:
    rewards_a = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    rewards_b = [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    a, b = (
        [[rollout(call(1, edited=True), reward=one) for one in task] for task in variant]
        for variant in (rewards_a, rewards_b)
    )
    found = trial(a, b).reward
    assert found is not None
    assert (found.a, found.b, found.difference) == (0.5, 0.75, 0.25)
    assert (found.wins, found.losses, found.ties) == (3, 1, 0)
    assert found.interval == bootstrap_interval([0.5, -0.5, 0.5, 0.5])
    assert not found.is_share


def test_leydens_own_failure_is_no_score_and_the_agents_is_0() -> None:
    found = trial(
        [[rollout(call(1), reward=1.0)], [rollout(call(1), reward=1.0)]],
        [[rollout(call(1, edited=True), kind="leyden")], [rollout(call(1, edited=True), kind="agent")]],
    )
    assert found.reward is not None
    assert (found.reward.tasks, found.reward.b, found.reward.interval) == (1, 0.0, None)
    assert (found.b.failed, found.b.unrewarded) == (2, 1)
    assert found.pairs[0].b is None and found.pairs[1].difference == -1.0
    assert found.pairs[1].output_b == "failed: E: it broke"
    assert found.problems == ["B: every rollout failed"]


def test_tokens_and_cost_are_those_of_the_calls_that_have_them() -> None:
    good = [[rollout(call(1, edited=True), call(2), reward=1.0)]]
    found = trial(good, good)
    assert (found.a.calls, found.a.input_tokens, found.a.output_tokens) == (2, 200, 20)
    assert (found.a.cost, found.a.seconds, found.b.edited_calls) == (1.0, 2.0, 1)
    assert trial(good, good, cost=None).a.cost is None
    uncounted = [[rollout(call(1, edited=True), call(2, tokens=None), reward=1.0)]]
    found = trial(good, uncounted)
    assert (found.b.input_tokens, found.b.uncounted_calls, found.b.cost) == (100, 1, None)
    failed = [[rollout(call(1, edited=True), call(2, tokens=None, status="error"), reward=1.0)]]
    found = trial(good, failed)
    assert (found.b.uncounted_calls, found.b.cost) == (0, 0.5), "a call that failed has no tokens to pay for"
    none = trial(good, [[rollout(reward=1.0)]])
    assert (none.b.calls, none.b.input_tokens, none.b.cost) == (0, None, None)
    assert "never replaced" in none.problems[0]


def test_a_forged_record_of_a_call_is_not_counted() -> None:
    forged = span(3, "chat m", {semconv.CALL_ID: "x", semconv.FORGED: [semconv.CALL_ID], semconv.INPUT_TOKENS: 5})
    found = trial([[rollout(call(1), forged, reward=1.0)]], [[rollout(call(1, edited=True), reward=1.0)]])
    assert found.a.calls == 1


def test_the_largest_differences_come_first() -> None:
    rewards = [(0.0, 0.5), (1.0, 1.0), (1.0, 0.0), (0.0, 0.25)]
    a, b = ([[rollout(call(1, edited=True), reward=pair[variant])] for pair in rewards] for variant in (0, 1))
    found = trial(a, b)
    assert [pair.row for pair in found.largest_differences(2)] == [2, 0]
    assert [pair.row for pair in found.largest_differences(9)] == [2, 0, 3]


def test_variants_that_cannot_be_compared_are_refused() -> None:
    same = PromptEdits(components=(*EDITS.components, PromptComponent(name="t", role="tool", text="T")))
    for a, b in (({}, {}), (CHANGED, {"other": same}), ({}, {"prompts": PromptEdits()})):
        with pytest.raises(UsageError, match="both variants send the same texts"):
            check_variants(a, b)
    template = {"prompt": PromptTemplate(template="x")}
    with pytest.raises(UsageError, match="variant A has the prompt template 'prompt', and variant B has not"):
        check_variants(template, CHANGED)
    empty = PromptEdits(components=(msgspec.structs.replace(EDITS.components[0], new_text=" "),))
    with pytest.raises(UsageError, match=r"variant B: the text of the prompt '.+' is empty; write one"):
        check_variants({}, {"prompts": empty})
    with pytest.raises(UsageError, match="variant A: the text of the prompt 'prompt' is empty"):
        check_variants({"prompt": PromptTemplate(template="")}, template)
    check_variants(template, {"prompt": PromptTemplate(template="y")})
    check_variants({}, CHANGED)
    check_variants({}, {}, same_policy=False)
