"""Stages on a scripted context: each learns as it would alone, on what the one before left, also after a kill."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from leyden.core.algorithm.base import NO_POLICY, Algorithm, Context, StoredRollouts
from leyden.core.algorithm.registry import algorithm_class, make_algorithm
from leyden.core.algorithm.stages import Stages
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import UsageError
from leyden.core.policy.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from leyden.core.policy.checkpoints.retention import latest_checkpoint, step_of
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext

BEST: dict[str, Any] = {"algorithm": "sft", "config": {"keep": "best", "learning_rate": 1e-3}}
PAIRS: dict[str, Any] = {"algorithm": "dpo", "config": {"learning_rate": 2e-3}}
PLAIN: dict[str, Any] = {"algorithm": "lightning_rl", "config": {"learning_rate": 2e-3}}
REWARDED: dict[str, Any] = {"algorithm": "lightning_rl", "config": {"learning_rate": 1e-3, "kl_loss": 0.1}}


def batch(number: int) -> list[TrajectoryGroup]:
    def tried(n: int) -> Any:
        name = f"b{number}r{n}"
        call = transition([1, 2, 10 + number], [4 + n, 5], rollout_id=name)
        return trajectory(float(n), [call], rollout_id=name)

    return [TrajectoryGroup(task_id=str(number), trajectories=tuple(map(tried, range(3))))]


class Killed(BaseException):
    """What ends a sitting in the middle."""


class KeepingContext(ScriptedContext):
    """Keeps a checkpoint after every step in `folder`, goes on from the last, and may be killed after a step."""

    def __init__(self, folder: Path, steps: int, *, killed_after: int | None = None) -> None:
        super().__init__(tiny_policy(shape=TinyShape(vocab=40, layers=1)), steps=steps)
        self.folder, self.killed_after = folder, killed_after
        self.updaters: list[int] = []
        """Which updater each step was taken by."""

    @property
    def goes_on_after(self) -> int:
        latest = latest_checkpoint(self.folder)
        return 0 if latest is None else step_of(latest)

    async def restore(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
        latest = latest_checkpoint(self.folder)
        if latest is not None:
            load_checkpoint(latest, updaters["policy"])
            self.step = step_of(latest)

    async def collect(self) -> list[TrajectoryGroup]:
        return batch(self.step)

    async def checkpoint(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
        self.updaters.append(id(updaters["policy"]))
        save_checkpoint(self.folder, self.step, updaters["policy"], {"step": self.step})
        if self.step == self.killed_after:
            raise Killed

    async def stored(self, source: str) -> StoredRollouts:
        groups = batch(9)
        return StoredRollouts(groups, ("b9r0", "b9r1", "b9r2"), Counter(), Counter(), Counter())


def stages(*given: dict[str, Any], **more: Any) -> Algorithm:
    return make_algorithm("stages", {"stages": list(given), **more})


def for_steps(stage: dict[str, Any], steps: int) -> dict[str, Any]:
    return stage | {"steps": steps}


def weights(model: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.weights().items()}


def assert_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


async def test_a_stage_learns_as_it_would_alone_from_what_the_one_before_left(tmp_path: Path) -> None:
    context = KeepingContext(tmp_path / "together", steps=5)
    await stages(for_steps(BEST, 2), PLAIN).run(context)
    assert context.step == 5
    assert context.calls[0] == "before" and context.calls[-1] == "after" and context.calls.count("before") == 1
    assert [own == context.updaters[0] for own in context.updaters] == [True, True, False, False, False]

    class Rest(KeepingContext):
        async def collect(self) -> list[TrajectoryGroup]:
            return batch(self.step + 2)

    alone = KeepingContext(tmp_path / "first", steps=2)
    await make_algorithm("sft", BEST["config"]).run(alone)
    rest = Rest(tmp_path / "second", steps=3)
    rest.model = rest.models["policy"] = alone.model
    await make_algorithm("lightning_rl", PLAIN["config"]).run(rest)
    assert_equal(weights(context.model), weights(rest.model))


@pytest.mark.parametrize("killed_after", [1, 2, 3, 5])
async def test_a_run_that_is_killed_in_any_stage_ends_with_the_same_weights(tmp_path: Path, killed_after: int) -> None:
    given = for_steps(BEST, 2), for_steps(PAIRS, 1), REWARDED
    whole = KeepingContext(tmp_path / "whole", steps=6)
    await stages(*given).run(whole)
    with pytest.raises(Killed):
        await stages(*given).run(KeepingContext(tmp_path / "killed", steps=6, killed_after=killed_after))
    gone_on = KeepingContext(tmp_path / "killed", steps=6)
    await stages(*given).run(gone_on)
    assert len(gone_on.updaters) == 6 - killed_after
    assert_equal(weights(gone_on.model), weights(whole.model))


async def test_a_teachers_traces_come_first_so_many_times_and_then_what_is_rewarded(tmp_path: Path) -> None:
    traces = {"algorithm": "sft", "steps": 4, "config": {"spans": "teacher", "per_step": 3, "passes": 2.0}}
    algorithm = stages(traces, REWARDED)
    assert algorithm.needs_rollouts and algorithm.rehearsed().name == "lightning_rl"
    context = KeepingContext(tmp_path, steps=5)
    await algorithm.run(context)
    assert context.step == context.steps == 5
    updates: list[Any] = [given[1] for phase, given in context.computed if phase == "update"]
    learned = [sorted(item.transition.rollout_id for item in getattr(one, "transitions", one)) for one in updates]
    assert [sorted(ids) for ids in learned[:2]] == [["b9r0", "b9r1", "b9r2"]] * 2  # twice, and not four times
    assert [sorted(ids) for ids in learned[2:]] == [[f"b{n}r0", f"b{n}r1", f"b{n}r2"] for n in (2, 3, 4)]


async def test_a_run_that_stops_early_begins_no_further_stage(tmp_path: Path) -> None:
    class Stopping(KeepingContext):
        async def checkpoint(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
            await super().checkpoint(updaters)
            self.steps = self.step

    context = Stopping(tmp_path, steps=6)
    await stages(for_steps(BEST, 2), PAIRS).run(context)
    assert (context.step, len(context.updaters)) == (1, 1)


async def test_the_pace_is_that_of_the_stages() -> None:
    ahead = {"algorithm": "lightning_rl", "config": {"loop": "one_off"}}
    algorithm = stages(for_steps(ahead, 2), ahead)
    assert isinstance(algorithm, Stages) and algorithm.pace() == LoopKind.of("one_off", None, accounts_for_age=True)


REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    ([], "at least two entries"),
    ([BEST], "to run one algorithm, leave stages out"),
    ([BEST, PAIRS], "stage 1 .sft. needs steps"),
    ([for_steps(BEST, 0), PAIRS], "stage 1 .sft. needs at least 1 step, not 0"),
    ([for_steps(BEST, 1), {"algorithm": "spam"}], "stage 2: unknown algorithm 'spam'"),
    ([for_steps(BEST, 1), {"algorithm": "sft", "config": {"keeps": "best"}}], "stage 2: .*keeps"),
    ([for_steps(BEST, 1), {"algorithm": "dpo", "step": 2}], "step"),
    ([for_steps(BEST, 1), {"algorithm": "dpo", "config": {"lora": {}}}], "lora must be the same"),
    ([for_steps(BEST, 1), {"algorithm": "dpo", "config": {"precision": "bfloat16"}}], "precision must be the same"),
    ([for_steps(BEST, 1), {"algorithm": "lightning_rl", "config": {"loop": "async"}}], "loop and max_staleness"),
    ([for_steps(BEST, 1), for_steps({"algorithm": f"{__file__}:OwnLoop"}, 1)], "its own training loop"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_cannot_be_stages_is_refused(given: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        stages(*given)


@pytest.mark.parametrize(
    ("steps", "given", "said"),
    [
        (3, [for_steps(BEST, 3), PAIRS], r"the run's 3 steps are too few for stage 2 \(dpo\)"),
        (3, [for_steps(BEST, 2), for_steps(PAIRS, 2)], r"steps are too few for stage 2 \(dpo\)"),
        (5, [for_steps(BEST, 2), for_steps(PAIRS, 2)], "stages take 4 of the run's 5 steps"),
    ],
)
async def test_stages_take_the_steps_of_the_run(
    tmp_path: Path, steps: int, given: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        await stages(*given).run(KeepingContext(tmp_path, steps=steps))


def test_what_memory_is_needed_for_is_what_any_stage_takes() -> None:
    lora: dict[str, Any] = {"lora": {"rank": 4}}
    rewarded = REWARDED["config"] | lora | {"token_budget": 512}
    options: Any = stages(
        {"algorithm": "sft", "steps": 1, "config": lora | {"keep": "best", "token_budget": 1024}},
        {"algorithm": "lightning_rl", "config": rewarded},
        learning_rate=1e-4,
    ).config
    assert (options.lora.rank, options.token_budget, options.compares_with_reference, options.critic) == (
        4,
        1024,
        True,
        None,
    )
    one, other = options.learners()
    assert (one.config.learning_rate, other.config.learning_rate) == (1e-4, 1e-3)


def test_settings_make_the_same_stages_again() -> None:
    algorithm = stages(for_steps(BEST, 2), REWARDED)
    again = make_algorithm("stages", algorithm.settings())
    assert again.settings() == algorithm.settings()
    assert algorithm_class("stages") is Stages


class OwnLoop(Algorithm):
    """Keeps a loop of its own."""

    name = "own"
    Config = algorithm_class("lightning_rl").Config

    async def run(self, context: Context) -> None:
        raise AssertionError
