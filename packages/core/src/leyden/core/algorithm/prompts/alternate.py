"""Alternate: weights and prompts in turns. After every `updates` updates of the weights comes a search for prompts.

Which step is what follows from its number alone. A step is an update of the weights from one batch of rollouts, or a
prompt round: a whole search, whose candidates all run with the weights of that moment. Nothing that an earlier round
measured is used to compare prompts, because the weights have changed since then.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.language_model import OWN, LanguageModel
from leyden.core.algorithm.learner import Learner, why_empty
from leyden.core.algorithm.prompts.base import PromptAlgorithm, PromptAlgorithmOptions, PromptSession
from leyden.core.algorithm.prompts.budget import BudgetSpent
from leyden.core.algorithm.prompts.components import PromptComponents
from leyden.core.algorithm.prompts.rounds import Round, RoundContext, budget_left, pareto_front
from leyden.core.algorithm.prompts.search import Candidate, PromptSearch
from leyden.core.algorithm.registry import make_algorithm, make_learner
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import NothingToLearn, UsageError

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

log = logging.getLogger(__name__)


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The algorithm that updates the weights."""

    algorithm: str = "lightning_rl"
    """Name of a registered algorithm that learns from batches, or an import string."""
    config: dict[str, Any] = {}
    """Its configuration, the same as if it ran alone."""


class Prompts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The algorithm that searches for prompts."""

    algorithm: str = "gepa"
    """Name of a registered algorithm that trains prompts, or an import string."""
    config: dict[str, Any] = {}
    """Its configuration, the same as if it ran alone. `budget` limits all rounds of the run together."""


class AlternateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What trains weights and prompts, and how often they take turns."""

    weights: Weights = Weights()
    prompts: Prompts = Prompts()
    updates: int = 10
    """Updates of the weights between two prompt rounds. Each is a step."""
    iterations: int = 5
    """Iterations of the search in a prompt round. The whole round is one step."""
    begin: Literal["prompts", "weights"] = "prompts"
    """What the run begins with."""
    prompts_at_once: int = 1
    """Number of prompts of the Pareto front that the rollouts of a task are divided over during updates."""
    kept_prompts: int = 3
    """Number of prompts of the Pareto front that the next round evaluates again, to begin with the best of them."""
    learning_rate: float | None = None
    """Learning rate of the weights if their own configuration has none."""

    def __post_init__(self) -> None:
        for name in ("updates", "iterations", "prompts_at_once", "kept_prompts"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.learning_rate is not None and "learning_rate" in self.weights.config:
            raise UsageError("learning_rate has no effect: weights.config sets its own")

    def learner(self) -> Learner[Any, Any]:
        """Return a new learner of the weights; raises UsageError for an algorithm that cannot take turns."""
        learner = make_learner(
            self.weights.algorithm, self.weights.config, learning_rate=self.learning_rate, label="weights"
        )
        if not learner.needs_rollouts:
            raise UsageError(
                f"weights: {self.weights.algorithm} learns from spans of another run, on which new prompts have no "
                "effect; use stages, or a separate run"
            )
        if learner.pace().loop != "sync":
            raise UsageError(
                f"weights: loop={learner.pace().loop} collects rollouts ahead, with prompts that a round may replace; "
                "set loop=sync"
            )
        return learner

    def prompt_algorithm(self) -> PromptAlgorithm:
        """Return the algorithm that searches for prompts; raises UsageError for any other algorithm."""
        try:
            made = make_algorithm(self.prompts.algorithm, self.prompts.config)
        except UsageError as error:
            raise UsageError(f"prompts: {error}") from error
        if not isinstance(made, PromptAlgorithm):
            raise UsageError(f"prompts: {self.prompts.algorithm} trains no prompts; use gepa")
        return made


class AlternateState(msgspec.Struct, kw_only=True):
    """What a resumed run needs beside weights and resources."""

    rounds: list[Round] = []
    """The prompt rounds; the last one may be unfinished."""
    empty: list[int] = []
    """The latest updates that had nothing to learn from, as numbers of steps, since the last one that had."""


class Alternate(Algorithm):
    """Trains weights and prompts in turns, and compares at the end what each of them contributes."""

    name = "alternate"
    Config = AlternateConfig
    trains_prompts = True

    def __init__(self, config: AlternateConfig) -> None:
        super().__init__(config)
        self._config = config
        self._learner, self._prompts = config.learner(), config.prompt_algorithm()
        self._begins_with_prompts = config.begin == "prompts"
        self._updates, self._iterations = config.updates, config.iterations
        self._at_once, self._kept = config.prompts_at_once, config.kept_prompts

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain values, including every option of both algorithms."""
        own = {name: value for name, value in super().settings().items() if name != "learning_rate"}
        return own | {
            "weights": {"algorithm": self._config.weights.algorithm, "config": self._learner.settings()},
            "prompts": {"algorithm": self._config.prompts.algorithm, "config": self._prompts.settings()},
        }

    def options_of(self, policy: str) -> msgspec.Struct:
        """Return the options of the updates."""
        return self._learner.options_of(policy)

    def rehearsed(self) -> Algorithm:
        """Return the learner of the weights: a check rehearses an update."""
        return self._learner

    @property
    def called_policies(self) -> tuple[str, ...]:
        """The policy that writes new prompts, if the run serves it."""
        reflection = self._prompts.options.reflection
        own = reflection.function is None and reflection.endpoint == OWN
        return (reflection.model,) if own and reflection.model else ()

    def pace(self) -> LoopKind:
        """Return that rollouts are collected in step with the updates."""
        return self._learner.pace()

    def is_prompt_round(self, step: int) -> bool:
        """Whether step number `step`, from 1, is a prompt round."""
        return (step - 1 if self._begins_with_prompts else step) % (self._updates + 1) == 0

    def check_steps(self, steps: int) -> None:
        """Raise UsageError if the steps have no prompt round or no update, or if a library is missing."""
        rounds = self._rounds_in(steps)
        if not 0 < rounds < steps:
            what = "prompt round" if not rounds else "update of the weights"
            raise UsageError(
                f"the run's {steps} steps have no {what}: with updates={self._updates}, give the run at least "
                f"{2 if self._begins_with_prompts else self._updates + 1} steps"
            )
        self._learner.check_steps(steps - rounds)
        self._prompts.check_installed()

    async def run(self, context: Context) -> None:
        """Take the planned steps, continuing from where the last session stopped."""
        self.check_steps(context.steps)
        updates = context.steps - self._rounds_in(context.steps)
        await self._learner.prepare(context, updates)
        models = {name: context.load_policy(name) for name in context.policies}
        updaters = self._learner.make_updaters(models, updates, context.seed)
        await context.restore(updaters)
        opened: list[LanguageModel] = []
        try:
            opened.extend(context.language_model(options) for options in self._prompts.options.models())
            turns = _Turns(context, self._prompts, opened, self._iterations, self._kept)
            if context.step == 0:
                await context.evaluate("before")
            async with context.collecting(self.pace()):
                while context.step < context.steps:
                    if self.is_prompt_round(context.step + 1):
                        await turns.take_round(updaters)
                    else:
                        context.divide_groups(await turns.versions(self._at_once))
                        await self._update(context, turns, updaters)
        finally:
            for model in opened:
                await model.close()
        await context.evaluate("after")
        await context.evaluate_combinations(models)

    async def _update(self, context: Context, turns: "_Turns", updaters: "Mapping[str, Updater]") -> None:
        """Update the weights from one batch. A batch without anything to learn takes its step, too."""
        groups, batch = await self._learner.collect_batch(context, updaters)
        if batch.parts:
            if turns.state.empty:
                turns.state.empty.clear()
                turns.save()
            await self._learner.take_step(context, updaters, batch)
            return
        step, reasons = context.step + 1, why_empty(groups, batch)
        turns.state.empty.append(step)
        empty = turns.state.empty
        had_round = any(self.is_prompt_round(one) for one in range(empty[0], step))
        if had_round and len(empty) >= self._learner.max_empty_batches:
            raise NothingToLearn(
                f"{len(empty)} batches in a row had nothing to learn from, also with the prompts that were tried since "
                f"step {empty[0]}; reasons in the last one: {reasons}"
            )
        log.warning("step %d had nothing to learn from (%s); the weights stay as they are", step, reasons)
        turns.save()
        await context.publish({name: updater.model for name, updater in updaters.items()})
        context.account(context.step, batch.accounts)
        context.log(_rewards(groups))
        await context.checkpoint(updaters)

    def _rounds_in(self, steps: int) -> int:
        return sum(self.is_prompt_round(step) for step in range(1, steps + 1))


class _Turns:
    """The prompt rounds of a session, with their record. Raises UsageError if the run cannot have any."""

    def __init__(
        self,
        context: Context,
        algorithm: PromptAlgorithm,
        opened: Sequence[LanguageModel],
        iterations: int,
        kept: int,
    ) -> None:
        self._context, self._algorithm, self._opened = context, algorithm, opened
        self._iterations, self._kept = iterations, kept
        given = context.state
        self.state = AlternateState() if given is None else msgspec.convert(given, AlternateState)
        self.state.empty = [step for step in self.state.empty if step <= context.step]
        self.state.rounds = [one for one in self.state.rounds if one.step <= context.step + 1]
        self._components = PromptComponents(context.resources, algorithm.options.components)
        self._session(Round(step=0), algorithm.options)  # raises errors of the settings before anything runs

    def save(self) -> None:
        """Write the record to disk."""
        self._context.save_state(msgspec.to_builtins(self.state))

    async def versions(self, count: int) -> list[str]:
        """Return the versions of the resources with the best prompts of the front; none if there is only one."""
        finished = [one for one in self.state.rounds if one.step <= self._context.step]
        front = finished[-1].front[:count] if finished else []
        if len(front) < 2:
            return []
        return [await self._context.add_resources(self._components.resources(texts)) for texts in front]

    async def take_round(self, updaters: "Mapping[str, Updater]") -> None:
        """Search for prompts with the present weights, and publish the best ones with them."""
        context = self._context
        earlier, own = self._begin(context.step + 1)
        known = earlier[-1].front[: self._kept] if earlier else []
        published = PromptComponents(context.resources, self._algorithm.options.components).texts
        start = [published, *(texts for texts in known if texts != published)]
        try:
            options = self._algorithm.options
            left = budget_left(options.budget, earlier)
            session, inner = self._session(own, msgspec.structs.replace(options, budget=left))
            await _evaluate_again(session, start)
            # Minibatches and parents of the rounds differ; the division of the tasks is that of all rounds.
            inner.seed = context.seed + own.step
            if not session.search.ended and inner.step < inner.steps:
                await self._algorithm.search(session)
            search = session.search
        except BudgetSpent as reason:
            context.show(f"prompt round in step {own.step}: nothing was tried, because {reason}")
            search = own.read()
        await self._publish(earlier, own, search, published, updaters)

    async def _publish(
        self,
        earlier: Sequence[Round],
        own: Round,
        search: PromptSearch,
        published: Mapping[str, str],
        updaters: "Mapping[str, Updater]",
    ) -> None:
        context, number = self._context, len(earlier) + 1
        if not search.candidates:
            search.candidates.append(Candidate(number=0, texts=dict(published)))
        best = search.candidates[search.best]
        own.search, own.front = msgspec.to_builtins(search), [one.texts for one in pareto_front(search)]
        self.save()
        score = best.score
        is_new = best.texts != published
        shown = "" if score is None else f", {score:.3f} on the validation tasks"
        context.show(f"prompt round {number}: {'new prompts' if is_new else 'the prompts stay'}{shown}")
        models: Mapping[str, PolicyModel] = {name: updater.model for name, updater in updaters.items()}
        gaps = await context.publish(models, resources=self._components.resources(best.texts))
        context.log(
            {
                **({} if score is None else {"reward": score}),
                **_gap_numbers(gaps),
                "prompt_round": number,
                "candidates": len(search.candidates),
                "prompts_changed": int(is_new),
                "iterations": own.iterations,
                "rollouts": len(search.evaluations),
                "spent_rollouts": sum(len(one.read().evaluations) for one in (*earlier, own)),
            }
        )
        await context.checkpoint(updaters)

    def _begin(self, step: int) -> tuple[list[Round], Round]:
        """Return the earlier rounds, and the round that is `step`."""
        rounds = self.state.rounds
        if not rounds or rounds[-1].step != step:
            rounds.append(Round(step=step))
        return rounds[:-1], rounds[-1]

    def _session(self, own: Round, options: PromptAlgorithmOptions) -> tuple[PromptSession, RoundContext]:
        inner = RoundContext(self._context, own, self._iterations, self.save)
        return PromptSession(inner, options, self._opened), inner


async def _evaluate_again(session: PromptSession, start: Sequence[Mapping[str, str]]) -> None:
    """Let the search begin with `start`: evaluate them on the validation tasks, and put the best first.

    A single one is evaluated by the search itself.
    """
    if len(start) < 2:
        return
    scored = await session.runner.evaluate([(texts, session.validation) for texts in start])
    means = [sum(one.score for one in own) / len(own) for own in scored]
    order = sorted(range(len(start)), key=lambda index: (-means[index], index))
    begun = [
        Candidate(
            number=number,
            texts=dict(start[index]),
            resources_id=await session.runner.version(start[index]),
        )
        for number, index in enumerate(order)
    ]
    for candidate, index in zip(begun, order, strict=True):
        session.note_scores(candidate, scored[index])
    made = [one for one in session.search.candidates if one.step]
    session.search.candidates[:] = [*begun, *made]


def _rewards(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return metrics of rollouts from which nothing was learned."""
    trajectories = [one for group in groups for one in group.trajectories]
    rewards = [one.reward for one in trajectories if one.reward is not None]
    mean = {"reward": sum(rewards) / len(rewards)} if rewards else {}
    return {**mean, "rollouts": len(trajectories), "groups": len(groups), "transitions_trained": 0}


def _gap_numbers(gaps: Mapping[str, float]) -> dict[str, float]:
    if len(gaps) == 1:
        return {"served_trained_gap": next(iter(gaps.values()))}
    return {f"{name}/served_trained_gap": gap for name, gap in gaps.items()}
