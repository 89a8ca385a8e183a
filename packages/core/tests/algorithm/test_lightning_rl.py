"""The loop on a scripted context: what it asks for, in which order, and what it does when nothing can be learned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leyden.core.algorithm.lightning_rl import LightningRL, LightningRLConfig
from leyden.core.algorithm.registry import ALGORITHMS, make_algorithm
from leyden.core.data.failure import Failure
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import NothingToLearn, UsageError
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext

TINY = TinyShape(vocab=32, hidden=16, intermediate=32, layers=1, heads=2)


def answered(model: PolicyModel, number: int, reward: float | None, calls: int = 1) -> Trajectory:
    """A rollout that answered `[4 + number, 5]` to the same prompt as all, by the model as it is now."""
    prompt, answer = [1, 2, 3], [4 + number, 5]
    logprobs = score(model, prompt + answer)[len(prompt) - 1 :]
    return trajectory(reward, [transition(prompt, answer, logprobs, rollout_id=f"r{number}")] * calls)


def scripted(rewards: list[list[list[float | None]]], steps: int) -> ScriptedContext:
    """A context that gives out a batch for each list of `rewards`, with a list for each of its groups."""
    model = tiny_policy(shape=TINY)
    batches = (
        [
            TrajectoryGroup(
                task_id=str(index), trajectories=tuple(answered(model, n, reward) for n, reward in enumerate(of_task))
            )
            for index, of_task in enumerate(batch)
        ]
        for batch in rewards
    )
    return ScriptedContext(model, batches, steps=steps)


FAST = LightningRLConfig(learning_rate=1e-3)


async def test_a_step_collects_updates_publishes_and_keeps() -> None:
    context = scripted([[[1.0, 0.0]], [[0.0, 1.0, 1.0]]], steps=2)
    await LightningRL(FAST).run(context)
    once = ["collect", "update", "publish", "checkpoint"]
    assert context.calls == ["restore", "before", *once, *once, "after"]
    assert [line["reward"] for line in context.lines] == [0.5, pytest.approx(2 / 3)]
    for record, line in zip(context.token_records, context.lines, strict=True):
        losses = [call.numbers().losses.sum() for call in record["policy"].calls]
        assert sum(losses) == pytest.approx(line["loss"], abs=1e-6)
    assert context.lines[0]["importance_ratio_deviation"] < 1e-3


async def test_the_update_favours_what_was_rewarded() -> None:
    context = scripted([[[1.0, 0.0]]] * 3, steps=3)
    before = [sum(score(context.model, [1, 2, 3, 4 + n, 5])[2:]) for n in (0, 1)]
    await LightningRL(FAST).run(context)
    after = [sum(score(context.model, [1, 2, 3, 4 + n, 5])[2:]) for n in (0, 1)]
    assert after[0] - after[1] > before[0] - before[1]


async def test_a_resumed_run_is_not_evaluated_before_again() -> None:
    context = scripted([[[1.0, 0.0]]], steps=2)
    context.step = 1
    await LightningRL(FAST).run(context)
    assert "before" not in context.calls


async def test_a_batch_without_a_lesson_is_not_a_step() -> None:
    context = scripted([[[1.0, 1.0], [0.5]], [[None, None]], [[1.0, 0.0]]], steps=1)
    await LightningRL(FAST).run(context)
    assert context.calls.count("collect") == 3
    assert context.calls.count("update") == 1
    assert context.dropped == {"no spread": 1, "fewer than two rewards": 2}


async def test_too_many_batches_without_a_lesson_end_the_run() -> None:
    context = scripted([[[1.0, 1.0]]] * 3, steps=1)
    config = LightningRLConfig(learning_rate=1e-3, max_empty_batches=3)
    with pytest.raises(NothingToLearn, match=r"3 batches in a row had nothing to learn from.*1 × no spread"):
        await LightningRL(config).run(context)


async def test_the_end_after_empty_batches_has_the_reasons_of_rollouts_and_calls() -> None:
    """A rollout with a reward of which no call was recorded or selected must not look like one without a reward."""
    unselected = replace(trajectory(1.0, []), rollout_id="a", untrained={"s1": "not selected", "s2": "not selected"})
    without_call = replace(trajectory(0.0, []), rollout_id="b")
    group = TrajectoryGroup(task_id="0", trajectories=(unselected, without_call))
    context = ScriptedContext(tiny_policy(shape=TINY), iter([[group]]), steps=1)
    with pytest.raises(NothingToLearn) as raised:
        await LightningRL(LightningRLConfig(learning_rate=1e-3, max_empty_batches=1)).run(context)
    assert str(raised.value).endswith(
        "reasons in the last one: 1 × fewer than two rewards; rollouts: 1 × no call left, 1 × no call; "
        "calls: 2 × not selected"
    )


async def test_batches_whose_rollouts_all_fail_end_the_run_with_what_they_failed_with() -> None:
    raised = Failure(kind="agent", type="LookupError", message="no luck")
    failed = [replace(trajectory(None, []), failure=raised, succeeded=False) for _ in range(4)]
    group = TrajectoryGroup(task_id="t", trajectories=tuple(failed))
    context = ScriptedContext(tiny_policy(shape=TINY), [[group]] * 2)
    config = LightningRLConfig(learning_rate=1e-3, max_empty_batches=2)
    said = "reasons in the last one: 4 of 4 rollouts failed: 4 × LookupError: no luck; 1 × fewer than two rewards"
    with pytest.raises(NothingToLearn, match=said):
        await LightningRL(config).run(context)


def test_the_baseline_counts_each_rollout_once() -> None:
    model = tiny_policy(shape=TINY)
    long = answered(model, 0, 1.0, calls=5)
    short = answered(model, 1, 0.0)
    group = TrajectoryGroup(task_id="t", trajectories=(long, short))
    batch = LightningRL(FAST).weigh([group])
    advantages = [item.advantage for item in batch.transitions]
    assert advantages == pytest.approx([advantages[0]] * 5 + [-advantages[0]])


def test_algorithms_come_by_name_with_typed_configuration() -> None:
    algorithm = make_algorithm("lightning_rl", {"learning_rate": 0.5, "loss": "gspo", "loss.clip_high": 0.3})
    assert isinstance(algorithm, LightningRL)
    assert algorithm.config == LightningRLConfig(learning_rate=0.5, loss={"name": "gspo", "clip_high": 0.3})
    assert make_algorithm(algorithm.reference(), algorithm.settings()).settings() == algorithm.settings()


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("lightningrl", {}, f"use one of {', '.join(sorted(ALGORITHMS))}"),
        ("lightning_rl", {"learning_rat": 1.0}, "learning_rat"),
        ("lightning_rl", {"epochs": "two"}, "epochs"),
        ("lightning_rl", {"credit": "fair"}, "unknown credit assignment 'fair'"),
        ("lightning_rl", {"loss": "sft"}, "loss 'sft' ignores advantages"),
        ("lightning_rl", {"loss": "gspo", "loss.clip_dual": 3.0}, "'gspo' has no option 'clip_dual'"),
        ("lightning_rl", {"loss.clip_high": 0.3}, "loss must be a name"),
        ("lightning_rl", {"kl_estimator": "k3"}, "kl_estimator has no effect without kl_loss"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(name: str, config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        make_algorithm(name, config)
    assert "\n" not in str(caught.value)


async def test_the_options_of_the_update_reach_it() -> None:
    context = scripted([[[1.0, 0.0]], [[0.0, 1.0]]], steps=2)
    config = LightningRLConfig(
        learning_rate=1e-3,
        schedule="linear",
        loss={"name": "gspo", "clip_low": 0.1, "clip_high": 0.2},
        correction="truncated",
        kl_loss=0.1,
        entropy_bonus=0.01,
    )
    await LightningRL(config).run(context)
    assert [line["learning_rate"] for line in context.lines] == pytest.approx([1e-3, 5e-4])
    assert context.lines[1]["reference_kl"] > 0
    assert context.lines[0]["mismatch_ratio_p50"] == 1.0


def test_a_missing_file_of_an_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        make_algorithm(f"{tmp_path}/none.py:Mine", {})


async def test_a_context_that_collects_in_step_refuses_another_loop() -> None:
    context = scripted([[[1.0, 0.0]]], steps=1)
    with pytest.raises(UsageError, match="ScriptedContext collects in step with the updates, not at loop async"):
        await LightningRL(LightningRLConfig(loop="async")).run(context)
    assert "update" not in context.calls


async def test_the_log_says_how_old_the_tokens_were() -> None:
    context = scripted([[[1.0, 0.0]], [[0.0, 1.0]]], steps=2)
    await LightningRL(FAST).run(context)
    assert [line["staleness_max"] for line in context.lines] == [0.0, 1.0], "the script's calls are all of version 0"


@pytest.mark.parametrize(
    "how",
    [
        {"advantage": {"name": "gae", "lam": 1.0}, "critic": {"name": "own", "learning_rate": 1e-2}},
        {"advantage": {"name": "gae", "lam": 1.0}, "critic": {"name": "shared", "learning_rate": 1e-2}},
        {"credit": "learned_value", "advantage": "rloo", "critic": {"name": "own", "learning_rate": 1e-2}},
    ],
)
async def test_a_critic_is_asked_before_each_update_and_learns_in_it(how: dict[str, Any]) -> None:
    context = scripted([[[1.0, 0.0, 1.0, 1.0]]] * 30, steps=30)
    await LightningRL(LightningRLConfig(learning_rate=1e-5, **how)).run(context)
    assert context.calls[2:7] == ["collect", "value", "update", "publish", "checkpoint"]
    said = [line["value_mean"] for line in context.lines]
    assert said[0] == 0.0 < said[1] < said[2] < said[3]
    assert said[-1] == pytest.approx(0.75, abs=0.1), "all rollouts have the same prompt, and earn 0.75 on average"
    assert {line["value_target_mean"] for line in context.lines} == {0.75}
    assert context.lines[-1]["value_loss"] < context.lines[0]["value_loss"]
    assert context.lines[0]["value_explained_variance"] == pytest.approx(0.0)
    assert all(line["critic_only"] == line["transitions_unvalued"] == 0 for line in context.lines)


async def test_warm_up_steps_are_the_critics_and_the_schedule_begins_after_them() -> None:
    context = scripted([[[1.0, 0.0]]] * 4, steps=4)
    config = LightningRLConfig(
        learning_rate=1e-3, schedule="linear", advantage="gae", critic={"name": "own", "warmup_steps": 2}
    )
    await LightningRL(config).run(context)
    assert [line["critic_only"] for line in context.lines] == [1, 1, 0, 0]
    assert [line["tokens_trained"] for line in context.lines] == [0, 0, 4, 4]
    assert [line.get("learning_rate") for line in context.lines] == [None, None, 1e-3, pytest.approx(5e-4)]
    assert context.calls.count("publish") == 4


async def test_a_warm_up_without_an_end_is_refused() -> None:
    context = scripted([], steps=2)
    config = LightningRLConfig(advantage="gae", critic={"name": "own", "warmup_steps": 2})
    with pytest.raises(UsageError, match="warmup_steps 2 leaves no step for the policy: the run has 2"):
        await LightningRL(config).run(context)


async def test_calls_that_the_critic_cannot_read_are_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    context = scripted([[[1.0, 0.0]]], steps=1)
    context.model.config.max_position_embeddings = 4
    config = LightningRLConfig(advantage="gae", critic="own", max_empty_batches=1)
    with pytest.raises(NothingToLearn, match="nothing to learn from"):
        await LightningRL(config).run(context)
    assert "skipped 2 calls that the critic cannot read" in caplog.text
