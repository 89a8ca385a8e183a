"""SFT and DPO on a scripted context: what they choose, in which order they deal it, and what they refuse."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from leyden.core.algorithm.base import NO_POLICY, StoredRollouts
from leyden.core.algorithm.dpo import DPO, DPOConfig
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.algorithm.sft import SFT, SFTConfig
from leyden.core.algorithm.supervised_loop import SupervisedLoop
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import NothingToLearn, UsageError
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext

PROMPT = (1, 2, 3)
RATE = 1e-3


def answered(task: int, number: int, reward: float | None, *, succeeded: bool = True, calls: int = 1) -> Trajectory:
    """One that answered `[4 + number, 5]` to the task's prompt, by a model that nobody has the log-probabilities of."""
    name = f"t{task}r{number}"
    call = transition([*PROMPT, 20 + task], [4 + number, 5], (), rollout_id=name, policy="teacher")
    return trajectory(reward, [call] * calls, rollout_id=name, succeeded=succeeded)


def groups(*rewards: Sequence[float | None]) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(task_id=str(task), trajectories=tuple(answered(task, n, r) for n, r in enumerate(of_task)))
        for task, of_task in enumerate(rewards)
    ]


class LessonContext(ScriptedContext):
    """Has groups stored beside those it gives out, and tells which rollouts each update learned from."""

    def __init__(
        self, *batches: list[TrajectoryGroup], stored: list[TrajectoryGroup] | None = None, steps: int = 1
    ) -> None:
        super().__init__(tiny_policy(shape=TinyShape(vocab=40, layers=1)), batches, steps=steps)
        self.store = stored or []

    @property
    def learned(self) -> list[list[str]]:
        return [
            [item.transition.rollout_id for item in given[1]] for phase, given in self.computed if phase == "update"
        ]

    async def stored(self, source: str) -> StoredRollouts:
        self.calls.append(f"stored {source}")
        ids = tuple(t.rollout_id for group in self.store for t in group.trajectories)
        return StoredRollouts(self.store, ids, Counter({"held out there": 3}), Counter(), Counter({"elsewhere": 2}))


def likelihood(model: PolicyModel, task: int, number: int) -> float:
    return sum(score(model, [*PROMPT, 20 + task, 4 + number, 5])[len(PROMPT) :])


async def test_a_step_on_collected_rollouts_imitates_the_best_of_each_task() -> None:
    context = LessonContext(groups([0.0, 1.0, 0.5], [0.25, 0.25]))
    before = [likelihood(context.model, 0, n) for n in range(3)]
    await SFT(SFTConfig(learning_rate=RATE, keep="best")).run(context)
    once = ["collect", "update", "publish", "checkpoint"]
    assert context.calls == ["restore", "before", *once, "after"]
    assert context.learned == [["t0r1", "t1r0"]]
    line = context.lines[0]
    assert (line["rollouts"], line["rollouts_imitated"], line["reward"]) == (5, 2, pytest.approx(0.4))
    assert likelihood(context.model, 0, 1) - before[1] > 0


async def test_a_threshold_leaves_out_what_earned_too_little_failed_or_was_not_rewarded() -> None:
    batch = groups([0.5, 0.75, None, 1.0])
    failed = answered(0, 9, 1.0, succeeded=False)
    silent = answered(0, 8, 1.0, calls=0)
    batch[0] = TrajectoryGroup(task_id="0", trajectories=(*batch[0].trajectories, failed, silent))
    selected = SFT(SFTConfig(above=0.5)).select_units([*batch, *groups([0.5, 0.0])])
    assert [unit[0].rollout_id for unit in selected.units] == ["t0r1", "t0r3"]
    assert selected.left_out == {
        "reward not above 0.5": 3,
        "no reward": 1,
        "failed without a reason": 1,
        "no call to imitate": 1,
    }
    assert selected.dropped == {"nothing to imitate": 1}


async def test_stored_rollouts_are_imitated_without_running_any_and_need_no_reward() -> None:
    context = LessonContext(stored=groups([None, None], [None], [None]), steps=4)
    algorithm = SFT(SFTConfig(learning_rate=RATE, spans="elsewhere", per_step=2))
    assert not algorithm.needs_rollouts
    await algorithm.run(context)
    assert context.calls[:3] == ["stored elsewhere", "restore", "before"]
    assert "collect" not in context.calls
    assert [len(ids) for ids in context.learned] == [2, 2, 2, 2]
    everything = ["t0r0", "t0r1", "t1r0", "t2r0"]
    assert sorted(context.learned[0] + context.learned[1]) == everything
    assert sorted(context.learned[2] + context.learned[3]) == everything
    assert [line["passes"] for line in context.lines] == [0.5, 1.0, 1.5, 2.0]
    assert context.lines[3]["loss"] < context.lines[0]["loss"]
    assert "reward" not in context.lines[0]


async def test_a_run_that_goes_on_deals_as_if_it_had_never_stopped() -> None:
    config = SFTConfig(learning_rate=RATE, spans="s", per_step=3)
    whole = LessonContext(stored=groups([None] * 7), steps=4)
    await SFT(config).run(whole)
    rest = LessonContext(stored=groups([None] * 7), steps=4)
    rest.step = 2
    await SFT(config).run(rest)
    assert rest.learned == whole.learned[2:]
    assert "before" not in rest.calls


async def test_passes_end_the_run_before_its_steps_are_taken() -> None:
    context = LessonContext(stored=groups([None] * 5), steps=100)
    await SFT(SFTConfig(learning_rate=RATE, spans="s", per_step=2, passes=2)).run(context)
    assert context.step == context.steps == 5
    assert Counter(chain(*context.learned)) == {f"t0r{n}": 2 for n in range(5)}


async def test_a_step_larger_than_the_set_takes_everything_once() -> None:
    context = LessonContext(stored=groups([None] * 3), steps=2)
    await SFT(SFTConfig(learning_rate=RATE, spans="s")).run(context)
    assert [sorted(ids) for ids in context.learned] == [["t0r0", "t0r1", "t0r2"]] * 2


async def test_whole_tasks_are_set_apart_for_the_held_out_loss() -> None:
    context = LessonContext(stored=groups(*[[None, None]] * 5), steps=3)
    await SFT(SFTConfig(learning_rate=RATE, spans="s", held_out=0.4, held_out_every=2)).run(context)
    assert {ids[:2] for ids in chain(*context.learned)} == {ids[:2] for ids in context.learned[0]}
    assert len(context.learned[0]) == 6
    assert ["held_out_loss" in line for line in context.lines] == [False, True, True]
    apart = {f"t{task}" for task in range(5)} - {ids[:2] for ids in context.learned[0]}
    losses = [-likelihood(context.model, int(task[1]), n) / 2 for task in apart for n in range(2)]
    assert context.lines[2]["held_out_loss"] == pytest.approx(sum(losses) / 4, rel=1e-4)


async def test_of_pairs_set_apart_loss_accuracy_and_margin_are_told() -> None:
    context = LessonContext(stored=groups(*[[1.0, 0.0]] * 5), steps=3)
    first = [likelihood(context.model, task, 0) - likelihood(context.model, task, 1) for task in range(5)]
    loss = {"name": "dpo", "beta": 0.5}
    await DPO(DPOConfig(learning_rate=RATE, spans="s", held_out=0.4, held_out_every=2, loss=loss)).run(context)
    learned = {ids[:2] for ids in context.learned[0]}
    assert len(context.learned[0]) == 6
    apart = [task for task in range(5) if f"t{task}" not in learned]
    margins = [
        0.5 * (likelihood(context.model, task, 0) - likelihood(context.model, task, 1) - first[task]) for task in apart
    ]
    assert ["held_out_loss" in line for line in context.lines] == [False, True, True]
    last = context.lines[2]
    expected = sum(math.log1p(math.exp(-margin)) for margin in margins) / 2
    assert last["held_out_loss"] == pytest.approx(expected, rel=1e-4)
    assert last["held_out_loss"] < math.log(2), "what is learned of some tasks is true of others"
    assert last["held_out_margin"] == pytest.approx(sum(margins) / 2, rel=1e-3)
    assert last["held_out_accuracy"] == sum(margin > 0 for margin in margins) / 2


class Impatient(LessonContext):
    """Ends the run with its second checkpoint, as early stopping does."""

    async def checkpoint(self, updaters: Any = NO_POLICY) -> None:
        await super().checkpoint(updaters)
        if self.step == 2:
            self.steps = 2


@pytest.mark.parametrize(
    "algorithm", [SFT(SFTConfig(learning_rate=RATE, spans="s")), DPO(DPOConfig(learning_rate=RATE, spans="s"))]
)
async def test_a_run_on_stored_rollouts_can_be_stopped_early(algorithm: SupervisedLoop[Any]) -> None:
    context = Impatient(stored=groups([1.0, 0.0], [0.0, 1.0]), steps=9)
    await algorithm.run(context)
    assert len(context.learned) == 2
    assert context.calls[-1] == "after"


@pytest.mark.parametrize(
    ("algorithm", "stored", "says"),
    [
        (
            SFT(SFTConfig(spans="s", above=0.5)),
            groups([0.5, None]),
            r"in s: 2 rollouts; left out: 3 × held out there, 1 × reward not above 0.5, 1 × no reward; "
            r"groups without any: 1 × nothing to imitate; calls re-tokenised: 2 × elsewhere",
        ),
        (SFT(SFTConfig(spans="s")), [], "in s: 0 rollouts"),
        (SFT(SFTConfig(spans="s", held_out=0.5)), [], "in s: 0 rollouts"),
        (SFT(SFTConfig(spans="s", held_out=0.5)), groups([None]), "in s: 1 rollouts"),
        (DPO(DPOConfig(spans="s", held_out=0.5)), groups([1.0, 0.0]), "in s: 2 rollouts"),
        (DPO(DPOConfig(spans="s")), groups([0.5, 0.5]), "1 × no answer better than another to the same state"),
    ],
)
async def test_spans_without_a_lesson_are_refused_with_the_counts_of_what_was_left_out(
    algorithm: SupervisedLoop[Any], stored: list[TrajectoryGroup], says: str
) -> None:
    context = LessonContext(stored=stored)
    with pytest.raises(UsageError, match=says):
        await algorithm.run(context)
    assert context.calls == ["stored s"]


async def test_batches_without_a_lesson_are_no_steps_and_too_many_end_the_run() -> None:
    context = LessonContext(groups([1.0, 1.0]), groups([1.0, 0.0]))
    await DPO(DPOConfig(learning_rate=RATE)).run(context)
    assert context.calls.count("collect") == 2
    assert context.calls.count("update") == 1
    assert context.dropped == {"no answer better than another to the same state": 1}
    context = LessonContext(*[groups([0.0, None])] * 2)
    with pytest.raises(
        NothingToLearn,
        match=("2 batches in a row had nothing to learn from; reasons in the last one: 1 × reward not above 0"),
    ):
        await SFT(SFTConfig(learning_rate=RATE, above=0.0, max_empty_batches=2)).run(context)


async def test_dpo_learns_which_of_two_answers_was_better() -> None:
    context = LessonContext(*[groups([1.0, 0.0], [0.0, 1.0])] * 3, steps=3)
    before = [likelihood(context.model, 0, 0) - likelihood(context.model, 0, 1)]
    await DPO(DPOConfig(learning_rate=RATE)).run(context)
    assert context.learned[0] == ["t0r0", "t0r1", "t1r1", "t1r0"]
    assert [line["pairs"] for line in context.lines] == [2, 2, 2]
    assert context.lines[2]["dpo_accuracy"] == 1.0
    assert context.lines[2]["dpo_margin"] > 0
    assert likelihood(context.model, 0, 0) - likelihood(context.model, 0, 1) > before[0]


async def test_pairs_are_made_of_stored_rollouts_too() -> None:
    context = LessonContext(stored=groups([1.0, 0.0, 0.5, 0.25], [0.5, 0.5]), steps=2)
    await DPO(DPOConfig(learning_rate=RATE, spans="s", per_step=1)).run(context)
    assert sorted(map(tuple, context.learned)) == [("t0r0", "t0r1"), ("t0r2", "t0r3")]
    assert context.dropped == {"no answer better than another to the same state": 1}


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("sft", {}, "sft needs spans to imitate; to imitate the run's own rollouts, set keep=best"),
        ("sft", {"spans": "s", "loss": "ppo_clip"}, "its loss can read neither advantages nor ratios"),
        ("sft", {"spans": "s", "loss": "dpo"}, "takes 2 transitions at a time, and this algorithm passes 1"),
        ("sft", {"keep": "best", "passes": 2}, "passes has no effect without spans"),
        ("sft", {"keep": "best", "held_out": 0.1}, "held_out has no effect without spans"),
        ("sft", {"spans": "s", "held_out": 1.0}, "held_out is a share of the tasks and must be below 1"),
        ("sft", {"spans": "s", "held_out_every": 3}, "held_out_every must be at least 1 step, and needs held_out"),
        ("sft", {"spans": "s", "per_step": 0}, "per_step must be above 0"),
        ("sft", {"spans": "s", "kl_reward": 0.1}, "kl_reward has no effect"),
        ("sft", {"spans": "s", "keep": "some"}, "keep"),
        ("dpo", {"loss": "sft"}, "takes 1 transitions at a time, and this algorithm passes 2"),
        ("dpo", {"per_step": 3}, "per_step has no effect without spans"),
        ("dpo", {"held_out": 0.1}, "held_out has no effect without spans"),
        ("dpo", {"min_gap": -1.0}, "min_gap must not be negative"),
        ("dpo", {"pairs_per_state": 0}, "pairs_per_state must be at least 1"),
        ("dpo", {"normalisation": "rollout"}, "normalisation has no effect"),
        ("dpo", {"loss": "dpo", "loss.beta": -1.0}, "beta must be above 0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(name: str, config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        make_algorithm(name, config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("sft", {"spans": "runs/teacher", "above": 0.5, "held_out": 0.1}),
        ("dpo", {"loss": "dpo", "loss.label_smoothing": 0.1, "credit": "final", "min_gap": 0.25}),
    ],
)
def test_settings_make_the_same_algorithm_again(name: str, config: dict[str, Any]) -> None:
    algorithm = make_algorithm(name, config)
    again = make_algorithm(algorithm.reference(), algorithm.settings())
    assert again.settings() == algorithm.settings()
    assert algorithm.needs_rollouts == ("spans" not in config)
