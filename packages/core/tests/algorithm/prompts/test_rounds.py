"""A search as one step of a run: its own iterations, rollouts and record; what rounds leave of a budget; the front."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from leyden.core.algorithm.prompts.budget import BudgetOptions, BudgetSpent
from leyden.core.algorithm.prompts.rounds import REPEATS, Round, RoundContext, budget_left, pareto_front
from leyden.core.algorithm.prompts.search import Candidate, Evaluation, PromptSearch, Reflection
from leyden.core.algorithm.task_rollouts import RolloutRequest
from leyden.core.data.resources import PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext

TASKS: list[Task] = [{"question": f"q{number}"} for number in range(3)]


def reward(resources: Mapping[str, Resource], task: Task) -> float:
    del resources, task
    return 0.5


def real_context() -> ScriptedPromptContext:
    return ScriptedPromptContext(TASKS, {"prompt": PromptTemplate(template="{question}")}, reward, steps=9, seed=4)


async def test_an_iteration_of_a_round_has_rollouts_of_its_own_within_the_step_of_the_run() -> None:
    real, own = real_context(), Round(step=1)
    inner = RoundContext(real, own, 2, lambda: None)
    assert (inner.step, inner.steps, inner.seed) == (0, 2, 4)
    asked = [RolloutRequest(row=1, repeat=7)]
    (first,) = await inner.run_tasks(asked)
    await inner.publish(resources={"prompt": PromptTemplate(template="new {question}")})
    (second,) = await inner.run_tasks(asked)
    assert [one.repeat for one in real.requests] == [7, REPEATS + 7]
    assert first.request == second.request == asked[0]
    assert (real.step, len(real.versions)) == (0, 1)  # the run publishes nothing before the round ends


async def test_a_round_goes_on_after_the_iterations_that_were_written_down() -> None:
    real, own = real_context(), Round(step=1)
    saved: list[dict[str, Any]] = []
    inner = RoundContext(real, own, 3, lambda: saved.append(msgspec.to_builtins(own)))
    inner.save_state({"candidates": []})
    await inner.publish()
    assert saved[-1]["iterations"] == 0  # an iteration has ended only once it is checkpointed
    await inner.checkpoint()
    again = RoundContext(real, msgspec.convert(saved[-1], Round), 3, lambda: None)
    assert (again.step, again.state) == (1, {"candidates": []})


async def test_a_round_has_neither_batches_nor_policies() -> None:
    inner = RoundContext(real_context(), Round(step=1), 1, lambda: None)
    for operation in (inner.collect(), inner.evaluate("before"), inner.restore()):
        with pytest.raises(UsageError, match="a prompt round"):
            await operation
    with pytest.raises(UsageError, match="a prompt round"):
        inner.load_policy()


def spent(rollouts: int, tokens: int, dollars: float) -> Round:
    evaluations = [
        Evaluation(row=0, held_out=None, resources_id="rs", repeat=n, step=1, score=0.0, rollout_id=f"r{n}", cost=0.0)
        for n in range(rollouts)
    ]
    answer = Reflection(text="t", input_tokens=tokens, cost=dollars)
    search = PromptSearch(evaluations=evaluations, reflections={"1.0": answer})
    return Round(step=1, search=msgspec.to_builtins(search))


def test_all_rounds_share_the_budget_of_the_run() -> None:
    given = BudgetOptions(rollouts=10, tokens=100, dollars=1.0)
    left = budget_left(given, [spent(3, 10, 0.25), spent(4, 20, 0.25)])
    assert (left.rollouts, left.tokens, left.dollars) == (3, 70, 0.5)
    assert budget_left(BudgetOptions(), [spent(3, 10, 0.25)]) == BudgetOptions()
    with pytest.raises(BudgetSpent, match="10 rollouts are spent"):
        budget_left(given, [spent(10, 0, 0.0)])


def candidate(number: int, scores: list[float], **more: Any) -> Candidate:
    found = {f"train/{task}": score for task, score in enumerate(scores)}
    return Candidate(number=number, texts={"prompt": f"text {number}"}, scores=found, **more)


def test_the_front_has_the_published_prompt_first_and_nothing_that_is_best_nowhere() -> None:
    search = PromptSearch(
        candidates=[
            candidate(0, [0.0, 0.0, 0.2]),  # best nowhere
            candidate(1, [1.0, 0.0, 0.0]),
            candidate(2, [0.9, 0.9, 0.0]),
            candidate(3, [0.0, 0.9, 1.0]),
            candidate(4, [1.0, 1.0, 1.0], rejected="it lost a variable"),
            Candidate(number=5, texts={"prompt": "never evaluated"}),
        ],
        best=2,
    )
    assert [one.number for one in pareto_front(search)] == [2, 3, 1]
    twice = PromptSearch(candidates=[candidate(0, [1.0]), candidate(1, [1.0])], best=0)
    twice.candidates[1].texts = twice.candidates[0].texts
    assert [one.number for one in pareto_front(twice)] == [0]
    unscored = PromptSearch(candidates=[Candidate(number=0, texts={"prompt": "start"})])
    assert [one.number for one in pareto_front(unscored)] == [0]
