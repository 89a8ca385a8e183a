"""Sides on a scripted context: each learns as it would alone from all rollouts, whoever answered them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from leyden.core.algorithm.base import NO_POLICY, Algorithm, Context
from leyden.core.algorithm.registry import algorithm_class, make_algorithm
from leyden.core.algorithm.side_by_side import SideBySide
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import NothingToLearn, UsageError
from leyden.core.policy.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from leyden.core.policy.checkpoints.retention import latest_checkpoint, step_of
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext

REWARDED: dict[str, Any] = {
    "algorithm": "lightning_rl",
    "config": {"learning_rate": 1e-3, "minibatches": 2, "kl_loss": 0.1},
}
BEST: dict[str, Any] = {"algorithm": "sft", "config": {"keep": "best", "learning_rate": 2e-3}}
PAIRS: dict[str, Any] = {"algorithm": "dpo", "config": {"learning_rate": 1e-3}}
ADAPTED: dict[str, Any] = {"algorithm": "lightning_rl", "config": {"learning_rate": 1e-2, "lora": {"rank": 2}}}
SHAPE = TinyShape(vocab=40, layers=1)


def model() -> PolicyModel:
    return tiny_policy(shape=SHAPE)


def group(number: int, *rewards: float | None, by: tuple[str, ...] = ("policy",), drawn_by: Any = None) -> Any:
    """A task with a rollout for each reward, answered by those named in turn; `drawn_by` knows how likely it was."""

    def tried(n: int, reward: float | None) -> Any:
        name, prompt, answer = f"b{number}r{n}", [1, 2, 10 + number], [4 + n, 5]
        logprobs = None if drawn_by is None else score(drawn_by, prompt + answer)[len(prompt) - 1 :]
        call = transition(prompt, answer, logprobs, rollout_id=name, policy=by[n % len(by)])
        return trajectory(reward, [call], rollout_id=name)

    tries = tuple(tried(n, reward) for n, reward in enumerate(rewards))
    return TrajectoryGroup(task_id=str(number), trajectories=tries)


def sides(given: Mapping[str, dict[str, Any]], **more: Any) -> SideBySide:
    made = make_algorithm("side_by_side", {"sides": [{"name": name} | side for name, side in given.items()], **more})
    assert isinstance(made, SideBySide)
    return made


def weights(policy: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.weights().items()}


def equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


async def together(given: Mapping[str, dict[str, Any]], batches: list[Any], **more: Any) -> ScriptedContext:
    algorithm = sides(given, **more)
    context = ScriptedContext({name: model() for name in given}, batches, steps=len(batches), seed=3)
    await algorithm.run(context)
    return context


async def alone(side: dict[str, Any], batches: list[Any], *, steps: int | None = None) -> ScriptedContext:
    context = ScriptedContext(model(), batches, steps=len(batches) if steps is None else steps, seed=3)
    await make_algorithm(side["algorithm"], side["config"]).run(context)
    return context


LEARNED_ALONE: dict[str, tuple[Mapping[str, torch.Tensor], list[Mapping[str, Any]]]] = {}
"""Weights and log lines of each side of the next test, which are the same whoever acts."""


@pytest.mark.parametrize("acts", [None, "best", "turns"])
async def test_each_side_learns_bit_for_bit_what_it_would_alone_from_the_same_rollouts(acts: str | None) -> None:
    given = {"rewarded": REWARDED, "best": BEST, "pairs": PAIRS, "adapted": ADAPTED}
    by = tuple(given) if acts == "turns" else (acts or "rewarded",)
    batches = [[group(n, 0.0, 1.0, 0.5, 0.25, by=by), group(n + 5, 1.0, 0.0, by=by)] for n in range(3)]
    context = await together(given, batches, acts=acts)
    assert context.calls[:3] == ["restore", "before", "collect"]
    assert context.calls[3:9] == ["update", "update", "update", "update", "publish", "checkpoint"]
    plain = [[group(n, 0.0, 1.0, 0.5, 0.25), group(n + 5, 1.0, 0.0)] for n in range(3)]
    for name, side in given.items():
        if name not in LEARNED_ALONE:
            own = await alone(side, plain)
            LEARNED_ALONE[name] = weights(own.model), own.lines
        learned, lines = LEARNED_ALONE[name]
        assert equal(weights(context.models[name]), learned), name
        for line, lone in zip(context.lines, lines, strict=True):
            assert line["reward"] == lone["reward"]
            assert line[f"{name}/loss"] == lone["loss"]
    assert not any(equal(weights(a), weights(b)) for a, b in combinations(context.models.values(), 2))


async def test_sides_of_equal_configuration_stay_equal() -> None:
    context = await together({"a": REWARDED, "b": REWARDED}, [[group(n, 0.0, 1.0, by=("a",))] for n in range(3)])
    assert equal(weights(context.models["a"]), weights(context.models["b"]))


async def test_the_numbers_of_rollouts_are_logged_once_and_those_of_a_side_under_its_name() -> None:
    given = {"rewarded": REWARDED, "best": BEST}
    context = await together(given, [[group(0, 1.0, 0.0, 0.5, 0.25, by=tuple(given))]], acts="turns")
    (line,) = context.lines
    assert (line["reward"], line["rollouts"], line["transitions"]) == (0.4375, 4, 4)
    assert (line["rewarded/reward"], line["best/reward"]) == (0.75, 0.125)
    assert (line["rewarded/transitions"], line["best/transitions"]) == (2, 2)
    assert (line["rewarded/transitions_trained"], line["best/transitions_trained"]) == (4, 1)
    assert (line["groups"], line["best/rollouts_imitated"], line["policies_trained"]) == (1, 1, 2)
    assert "rewarded/staleness_max" in line
    assert not line.keys() & {"rewarded/groups", "best/rollouts", "staleness_max", "loss"}


async def test_a_pair_may_be_of_two_sides_answers() -> None:
    given = {"pairs": PAIRS, "best": BEST}
    context = await together(given, [[group(0, 1.0, 0.0, by=tuple(given))]], acts="turns")
    assert context.lines[0]["pairs/pairs"] == 1


async def test_ratios_of_a_side_that_does_not_act_are_to_whoever_drew_the_tokens() -> None:
    """Both sides hold the policy that drew the first batch; it then moves on, and the other stays where it was."""
    still: dict[str, Any] = {
        "algorithm": "lightning_rl",
        "config": {"learning_rate": 0.0, "correction": "truncated", "loss": "reinforce"},
    }
    models = {"moving": model(), "still": model()}

    def batches() -> Any:
        for number in range(2):
            yield [group(number, 0.0, 1.0, 0.5, by=("moving",), drawn_by=models["moving"])]

    fast = REWARDED | {"config": {"learning_rate": 3e-2}}
    context = ScriptedContext(models, batches(), steps=2)
    await sides({"moving": fast, "still": still}).run(context)
    first, second = context.lines
    for name in models:
        assert first[f"{name}/importance_ratio_deviation"] < 1e-4
    assert second["moving/importance_ratio_deviation"] < 1e-4
    assert second["still/importance_ratio_deviation"] > 0.1
    assert second["still/mismatch_ratio_effective_share"] < 0.999 < first["still/mismatch_ratio_effective_share"]
    assert second["still/mismatch_kl"] > first["still/mismatch_kl"]
    prompt, answer = [1, 2, 11], [4, 5]
    drawn = context.computed[-1][1][1].keywords["part"].transitions[0].transition
    before = score(model(), prompt + answer)[len(prompt) - 1 :]
    assert list(drawn.response_ids) == answer
    assert second["still/mismatch_ratio_p50"] != pytest.approx(1.0, abs=1e-3)
    assert max(abs(a - b) for a, b in zip(before, drawn.logprobs, strict=True)) > 0.01, "those of the side that acted"


async def test_what_teaches_no_side_that_acts_is_no_step_and_other_sides_go_without() -> None:
    above = {"algorithm": "sft", "config": {"above": 0.75, "learning_rate": 1e-3}}
    equal_rewards, all_low, both = [group(0, 1.0, 1.0)], [group(1, 0.0, 0.5)], [group(2, 0.0, 1.0)]
    script = [
        [group(0, 1.0, 1.0, by=("rewarded",))],
        [group(1, 0.0, 0.5, by=("rewarded",))],
        [group(2, 0.0, 1.0, by=("rewarded",))],
    ]
    context = ScriptedContext({"rewarded": model(), "above": model()}, script, steps=2, seed=3)
    await sides({"rewarded": REWARDED, "above": above}).run(context)
    assert [line["policies_trained"] for line in context.lines] == [1, 2]
    assert context.dropped == {"rewarded: no spread": 1, "above: nothing to imitate": 1}
    lone = await alone(REWARDED, [equal_rewards, all_low, both], steps=2)
    assert equal(weights(context.models["rewarded"]), weights(lone.model))
    turns = ScriptedContext({"rewarded": model(), "above": model()}, script, steps=3, seed=3)
    await sides({"rewarded": REWARDED, "above": above}, acts="turns").run(turns)
    assert [line["policies_trained"] for line in turns.lines] == [1, 1, 2]


async def test_a_run_without_a_lesson_ends_as_the_acting_side_would_have_it() -> None:
    patient = {"algorithm": "lightning_rl", "config": {"max_empty_batches": 2}}
    context = ScriptedContext(
        {"patient": model(), "best": model()}, [[group(n, 1.0, 1.0, by=("patient",))] for n in range(9)], steps=3
    )
    with pytest.raises(
        NothingToLearn, match=r"2 batches in a row had .*; reasons in the last one: .*patient: no spread"
    ):
        await sides({"patient": patient, "best": BEST}).run(context)


class Killed(BaseException):
    """What ends a sitting in the middle."""


class KeepingContext(ScriptedContext):
    """Keeps a checkpoint after every step in `folder`, goes on from the last, and may be killed after a step."""

    def __init__(self, folder: Path, names: Mapping[str, Any], *, killed_after: int | None = None) -> None:
        super().__init__({name: model() for name in names}, steps=4)
        self.folder, self.killed_after = folder, killed_after

    async def restore(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
        latest = latest_checkpoint(self.folder)
        if latest is not None:
            load_checkpoint(latest, updaters)
            self.step = step_of(latest)

    async def collect(self) -> list[TrajectoryGroup]:
        return [group(self.step, 0.0, 1.0, 0.5, by=self.policies)]

    async def checkpoint(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
        save_checkpoint(self.folder, self.step, updaters, {"step": self.step})
        if self.step == self.killed_after:
            raise Killed


@pytest.mark.parametrize("killed_after", [1, 3])
async def test_a_run_that_is_killed_ends_with_the_same_weights_of_all_sides(tmp_path: Path, killed_after: int) -> None:
    given = {"rewarded": REWARDED, "best": BEST, "pairs": PAIRS, "adapted": ADAPTED}
    whole = KeepingContext(tmp_path / "whole", given)
    await sides(given, acts="turns").run(whole)
    with pytest.raises(Killed):
        await sides(given, acts="turns").run(KeepingContext(tmp_path / "killed", given, killed_after=killed_after))
    gone_on = KeepingContext(tmp_path / "killed", given)
    await sides(given, acts="turns").run(gone_on)
    for name in given:
        assert equal(weights(gone_on.models[name]), weights(whole.models[name])), name


async def test_sides_collect_at_the_pace_that_all_of_them_have() -> None:
    ahead = {"algorithm": "lightning_rl", "config": {"loop": "one_off"}}
    seen: list[LoopKind] = []

    class Paced(ScriptedContext):
        @asynccontextmanager
        async def collecting(self, pace: LoopKind) -> AsyncGenerator[None]:
            seen.append(pace)
            yield

    context = Paced({"a": model(), "b": model()}, [[group(0, 0.0, 1.0, by=("a",))]])
    await sides({"a": ahead, "b": ahead}).run(context)
    assert seen == [LoopKind.of("one_off", None, accounts_for_age=True)]


OFF_POLICY = {"algorithm": "lightning_rl", "config": {"loss": "reinforce"}}
REFUSED: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    ([{"name": "a", **BEST}], {}, "at least two entries, not 1; to run one algorithm, leave sides out"),
    ([{"name": "a", **BEST}, {"name": "a", **PAIRS}], {}, "two sides are called 'a'"),
    ([{"name": "a", **BEST}, {"name": "turns", **PAIRS}], {}, "cannot be called 'turns'"),
    ([{"name": "a", **BEST}, {"name": "policy", **PAIRS}], {}, "cannot be called 'policy'"),
    ([{"name": "a", **BEST}, {"name": "b", **PAIRS}], {"acts": "c"}, r"turns, or the name of a side \(a, b\), not 'c'"),
    ([{"name": "a", **BEST}, {"name": "b", **PAIRS}], {"learning_rate": 1e-4}, "learning_rate has no effect"),
    ([{"name": "a", **BEST}, {"name": "b", "algorithm": "spam"}], {}, "side b: unknown algorithm 'spam'"),
    ([{"name": "a", **BEST}, {"name": "b", "algorithm": "sft", "config": {"keeps": 1}}], {}, "side b: .*keeps"),
    (
        [{"name": "a", **BEST}, {"name": "b", "algorithm": f"{__file__}:OwnLoop"}],
        {},
        "its own training loop and cannot be a side",
    ),
    ([{"name": "a", **BEST}, {"name": "b", "algorithm": "stages"}], {}, "side b: .*stages"),
    (
        [{"name": "a", **BEST}, {"name": "b", "algorithm": "sft", "config": {"spans": "teacher"}}],
        {},
        "side b: it learns from spans",
    ),
    (
        [{"name": "a", **BEST}, {"name": "b", "algorithm": "lightning_rl", "config": {"loop": "one_off"}}],
        {},
        "loop and max_staleness must be the same",
    ),
    ([{"name": "a", **BEST}, {"name": "b", **OFF_POLICY}], {}, "side b learns from tokens that another .*truncated"),
    ([{"name": "b", **OFF_POLICY}, {"name": "a", **BEST}], {"acts": "turns"}, "side b learns from tokens that another"),
    (
        [{"name": "a", **BEST}, {"name": "b", "algorithm": "dpo", "config": {"max_empty_batches": 3}}],
        {},
        "side b: max_empty_batches has no effect",
    ),
]


@pytest.mark.parametrize(("given", "more", "said"), REFUSED)
def test_what_cannot_be_sides_is_refused(given: list[dict[str, Any]], more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_algorithm("side_by_side", {"sides": given, **more})


def test_the_side_that_acts_needs_no_correction() -> None:
    algorithm = sides({"a": OFF_POLICY, "b": BEST})
    assert algorithm.acting == ("a",)


async def test_a_run_of_other_policies_is_refused() -> None:
    with pytest.raises(
        UsageError, match=("sides a, b train a policy each, with the name of the side; the run has policy")
    ):
        await sides({"a": BEST, "b": PAIRS}).run(ScriptedContext(model()))


def test_a_side_that_cannot_take_the_steps_is_named() -> None:
    valued = {"advantage": "gae", "critic": {"name": "own", "warmup_steps": 5}}
    algorithm = sides({"a": BEST, "b": {"algorithm": "lightning_rl", "config": valued}})
    algorithm.check_steps(6)
    with pytest.raises(UsageError, match="side b: critic warmup_steps 5"):
        algorithm.check_steps(5)


def test_settings_make_the_same_sides_again_and_each_has_options_of_its_own() -> None:
    algorithm = sides({"a": BEST, "b": {"algorithm": "dpo"}}, acts="b", learning_rate=1e-4)
    again = make_algorithm("side_by_side", algorithm.settings())
    assert again.settings() == algorithm.settings()
    assert again.sides == ("a", "b") and again.acting == ("b",)
    options: Any = [again.options_of(name) for name in again.sides]
    assert [own.learning_rate for own in options] == [2e-3, 1e-4]


class OwnLoop(Algorithm):
    """Keeps a loop of its own."""

    name = "own"
    Config = algorithm_class("lightning_rl").Config

    async def run(self, context: Context) -> None:
        raise AssertionError
