"""Weights and prompts in turns on a scripted context: which step is what, what rounds compare, and a killed run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from leyden.core.algorithm.base import NO_POLICY
from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.alternate import Alternate, AlternateState
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.data.resources import NamedResources, PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import NothingToLearn, UsageError
from leyden.core.policy.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from leyden.core.policy.checkpoints.retention import latest_checkpoint
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext
from leyden.core.trainer.context.resource_versions import version_id

TASKS: list[Task] = [{"question": f"question {number}"} for number in range(4)]
REFLECTED = ("a {question}", "aaa {question}", "{question} aa", "b {question}")


def written(messages: Sequence[Message]) -> str:
    """Return one of the texts, by the request."""
    return f"```\n{REFLECTED[sum(messages[0]['content'].encode()) % len(REFLECTED)]}\n```"


def worth(resources: Mapping[str, Resource]) -> float:
    prompt = resources["prompt"]
    assert isinstance(prompt, PromptTemplate)
    return min(10, prompt.template.count("a")) / 10


class Killed(Exception):
    """Ends a session."""


class TurnsContext(ScriptedPromptContext):
    """Trains a tiny model, keeps a checkpoint of every step and the state, and may be killed at a rollout or step.

    Half of a batch's rollouts earn what the published prompt is worth, so a prompt without an `a` teaches nothing.
    """

    policies = ("policy",)

    def __init__(self, folder: Path, steps: int, *, killed_at: int | None = None, shift: float = 0.0) -> None:
        self.model = tiny_policy(shape=TinyShape(vocab=40, layers=1))
        self.shift = shift
        super().__init__(
            TASKS, {"prompt": PromptTemplate(template="{question}")}, self._earned, steps=steps, reflect=written
        )
        self.folder, self.killed_at, self.events = folder, killed_at, 0
        self.divided: list[tuple[str, ...]] = []

    def _earned(self, resources: Mapping[str, Resource], task: Task) -> float:
        del task
        return worth(resources) + self.shift * self.step

    async def add_resources(self, changes: NamedResources) -> str:
        version = {**self.resources, **changes}
        name = version_id(version)
        self._added[name] = version
        return name

    def _event(self) -> None:
        self.events += 1
        if self.events == self.killed_at:
            raise Killed

    def load_policy(self, name: str = "policy") -> PolicyModel:
        return self.model

    async def restore(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
        latest = latest_checkpoint(self.folder)
        if latest is None:
            saved = self.folder / "state-0.json"
        else:
            progress = load_checkpoint(latest, updaters["policy"])
            self.step, self.state = progress["step"], progress["state"]
            self.resources = msgspec.convert(progress["resources"], NamedResources)
            saved = self.folder / f"state-{self.step}.json"
        if saved.exists():
            self.state = json.loads(saved.read_text())

    def save_state(self, state: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        self.state = json.loads(json.dumps(state))
        (self.folder / f"state-{self.step}.json").write_text(json.dumps(state))
        self._event()

    async def collect(self) -> list[TrajectoryGroup]:
        self._event()
        high = worth(self.resources)

        def tried(number: int) -> Any:
            name = f"s{self.step}r{number}"
            call = transition([1, 2, 10 + self.step], [4 + number, 5], rollout_id=name)
            return trajectory(high * (number % 2), [call], rollout_id=name)

        return [TrajectoryGroup(task_id=str(self.step), trajectories=tuple(map(tried, range(4))))]

    def divide_groups(self, resources_ids: Sequence[str]) -> None:
        self.divided.append(tuple(resources_ids))

    async def publish(
        self, models: Mapping[str, PolicyModel] = NO_POLICY, *, resources: NamedResources | None = None
    ) -> dict[str, float]:
        assert set(models) == {"policy"}  # every version has the weights and the prompts
        await super().publish(models, resources=resources)
        return {"policy": 0.0}

    async def checkpoint(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
        progress = {"step": self.step, "state": self.state, "resources": msgspec.to_builtins(self.resources)}
        save_checkpoint(self.folder, self.step, updaters["policy"], progress)
        self._event()

    async def evaluate_combinations(self, models: Mapping[str, PolicyModel]) -> None:
        assert models["policy"] is self.model
        self.calls.append("combinations")


def turns(**options: Any) -> Alternate:
    prompts = {"config": {"minibatch": 2, "merges": 0, "reflection": {"function": "unused"}}}
    weights = {"config": {"learning_rate": 2e-3}}
    made = make_algorithm(
        "alternate", {"updates": 2, "iterations": 3, "prompts": prompts, "weights": weights} | options
    )
    assert isinstance(made, Alternate)
    return made


def kinds(context: TurnsContext) -> str:
    """Return the steps: P for a prompt round, W for an update, - for one that had nothing to learn from."""
    return "".join(
        "P" if "prompt_round" in line else "W" if line["transitions_trained"] else "-" for line in context.lines
    )


def weights_of(context: TurnsContext) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in context.model.weights().items()}


@pytest.mark.parametrize(("begin", "expected"), [("prompts", "PWWPWWP"), ("weights", "--PWWPW")])
async def test_the_number_of_a_step_decides_what_it_is(tmp_path: Path, begin: str, expected: str) -> None:
    context = TurnsContext(tmp_path, steps=7)
    await turns(begin=begin).run(context)
    assert kinds(context) == expected
    assert context.step == 7
    assert [call for call in context.calls if call in ("before", "after", "combinations")] == [
        *("before", "after", "combinations")
    ]
    assert worth(context.resources) > 0
    rounds = [line for line in context.lines if "prompt_round" in line]
    assert [line["prompt_round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert rounds[-1]["spent_rollouts"] == sum(line["rollouts"] for line in rounds)


async def test_a_round_compares_prompts_by_rollouts_with_the_present_weights_alone(tmp_path: Path) -> None:
    context = TurnsContext(tmp_path, steps=4, shift=0.01)
    await turns().run(context)
    first, second = msgspec.convert(context.state, AlternateState).rounds
    assert (first.step, second.step) == (1, 4)
    earlier, later = first.read(), second.read()
    best = earlier.candidates[earlier.best]
    again = next(one for one in later.candidates if one.texts == best.texts)
    assert best.score is not None and again.score is not None
    assert again.score - best.score == pytest.approx(0.03)  # three steps later, everything earns 0.01 more a step
    kept = [texts for texts in first.front if texts != best.texts]
    assert all(any(one.texts == texts and one.scores for one in later.candidates) for texts in kept)
    ids = {one.rollout_id for one in earlier.evaluations}
    assert not ids & {one.rollout_id for one in later.evaluations}


async def test_the_next_round_begins_with_the_best_of_the_front_by_its_new_scores(tmp_path: Path) -> None:
    class Changed(TurnsContext):
        """Updates of the weights turn round what earns most."""

        def _earned(self, resources: Mapping[str, Resource], task: Task) -> float:
            number = int(str(task).rpartition(" ")[2].rstrip("'}"))
            own = worth(resources)
            return 1 - own if self.step >= 3 else own + 0.01 * (number if own == 0.1 else 0)

    context = Changed(tmp_path, steps=4)
    await turns(kept_prompts=4).run(context)
    first, second = msgspec.convert(context.state, AlternateState).rounds
    start = second.read().candidates[0]
    scores = [one.score for one in second.read().candidates if not one.step]
    assert start.score == max(score for score in scores if score is not None)
    assert first.front[0] != second.front[0]


async def test_rollouts_are_divided_over_the_front_once_there_is_one(tmp_path: Path) -> None:
    context = TurnsContext(tmp_path / "several", steps=3)

    async def earned_by_task() -> None:
        await turns(begin="weights", updates=1, prompts_at_once=2).run(context)

    def reward(resources: Mapping[str, Resource], task: Task) -> float:
        own = worth(resources)
        return own if "1" in str(task) or own < 0.2 else own / 4  # no prompt is best at every task

    context._reward = reward  # pyright: ignore[reportPrivateUsage]
    await earned_by_task()
    rounds = msgspec.convert(context.state, AlternateState).rounds
    front = rounds[-1].front
    assert context.divided[0] == ()
    expected = [await context.add_resources({"prompt": PromptTemplate(template=one["prompt"])}) for one in front[:2]]
    assert context.divided[-1] == (tuple(expected) if len(front) > 1 else ())
    alone = TurnsContext(tmp_path / "alone", steps=3)
    await turns().run(alone)
    assert set(alone.divided) == {()}


@pytest.mark.parametrize("begin", ["prompts", "weights"])
async def test_a_run_killed_anywhere_ends_with_the_same_weights_and_prompts(tmp_path: Path, begin: str) -> None:
    whole = TurnsContext(tmp_path / "whole", steps=5)
    await turns(begin=begin).run(whole)
    for killed_at in range(1, whole.events + 1, 3):
        folder = tmp_path / f"killed-{killed_at}"
        killed = TurnsContext(folder, steps=5, killed_at=killed_at)
        with pytest.raises(Killed):
            await turns(begin=begin).run(killed)
        resumed = TurnsContext(folder, steps=5)
        await turns(begin=begin).run(resumed)
        assert resumed.resources == whole.resources
        for name, value in weights_of(whole).items():
            assert torch.equal(value, weights_of(resumed)[name]), (killed_at, name)
        assert len(killed.reflections) + len(resumed.reflections) <= len(whole.reflections) + 1


async def test_a_run_ends_if_neither_updates_nor_rounds_change_anything(tmp_path: Path) -> None:
    class Hopeless(TurnsContext):
        def _earned(self, resources: Mapping[str, Resource], task: Task) -> float:
            return 0.0

    options = {"begin": "weights", "updates": 3, "weights": {"config": {"max_empty_batches": 2}}}
    context = Hopeless(tmp_path, steps=20)
    with pytest.raises(NothingToLearn, match=r"4 batches in a row .* since step 1"):
        await turns(**options).run(context)
    assert kinds(context) == "---P"  # no earlier: a round may change it


async def test_rounds_stop_at_the_budget_of_the_run_and_updates_go_on(tmp_path: Path) -> None:
    prompts = {"config": {"minibatch": 2, "budget": {"rollouts": 9}, "reflection": {"function": "unused"}}}
    context = TurnsContext(tmp_path, steps=5)
    await turns(begin="prompts", updates=1, prompts=prompts).run(context)
    rounds = msgspec.convert(context.state, AlternateState).rounds
    assert sum(len(one.read().evaluations) for one in rounds) <= 9
    assert kinds(context)[0::2] == "PPP"
    assert any("nothing was tried" in line for line in context.shown)
    assert context.resources == context.versions[-1]


async def test_a_run_that_stops_early_takes_no_further_turn(tmp_path: Path) -> None:
    class Stopping(TurnsContext):
        async def checkpoint(self, updaters: Mapping[str, Updater] = NO_POLICY) -> None:
            await super().checkpoint(updaters)
            self.steps = self.step

    context = Stopping(tmp_path, steps=6)
    await turns().run(context)
    assert kinds(context) == "P"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"updates": 0}, "updates must be at least 1, not 0"),
        ({"weights": {"algorithm": "gepa"}}, "weights: gepa has its own training loop"),
        ({"weights": {"config": {"loop": "one_off"}}}, "weights: loop=one_off collects rollouts ahead"),
        ({"weights": {"algorithm": "sft", "config": {"spans": "s"}}}, "weights: sft learns from spans"),
        ({"prompts": {"algorithm": "lightning_rl"}}, "prompts: lightning_rl trains no prompts"),
        ({"prompts": {"config": {"minibatches": 3}}}, "prompts: configuration of algorithm 'gepa'"),
        ({"learning_rate": 1e-3}, "learning_rate has no effect"),
        ({"begin": "both"}, "begin: invalid enum value 'both'; it must be "),
    ],
)
def test_what_cannot_take_turns_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        turns(**options)


@pytest.mark.parametrize(
    ("begin", "steps", "says"),
    [
        ("prompts", 1, "the run's 1 steps have no update of the weights: .* at least 2 steps"),
        ("weights", 2, "the run's 2 steps have no prompt round: with updates=2, give the run at least 3 steps"),
    ],
)
def test_a_run_has_both_turns(begin: str, steps: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        turns(begin=begin).check_steps(steps)


async def test_settings_of_the_search_are_checked_before_anything_is_learned(tmp_path: Path) -> None:
    context = TurnsContext(tmp_path, steps=5)
    prompts = {"config": {"components": ["writer"], "reflection": {"function": "unused"}}}
    with pytest.raises(UsageError, match="no prompt is called 'writer'"):
        await turns(begin="weights", prompts=prompts).run(context)
    assert context.step == 0 and "before" not in context.calls


def test_its_settings_make_the_same_algorithm_again() -> None:
    algorithm = turns(begin="weights", prompts_at_once=2)
    again = make_algorithm("alternate", algorithm.settings())
    assert again.settings() == algorithm.settings()
    assert msgspec.to_builtins(algorithm.options_of("policy"))["learning_rate"] == 2e-3
    assert algorithm.rehearsed().name == "lightning_rl"


def test_a_frozen_policy_may_write_the_prompts() -> None:
    assert turns(prompts={"config": {"reflection": {"model": "teacher"}}}).called_policies == ("teacher",)
    assert turns().called_policies == ()
