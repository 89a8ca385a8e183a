from collections.abc import Mapping

import pytest
from prompt_sessions import session_of

from leyden.core.algorithm.prompts.base import PromptAlgorithmOptions, PromptSession
from leyden.core.algorithm.prompts.budget import BudgetOptions, BudgetSpent
from leyden.core.algorithm.prompts.evaluation import TaskRow
from leyden.core.algorithm.task_rollouts import RolloutRequest
from leyden.core.data.resources import PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import TrainingError
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext

START, BETTER = {"prompt": "{q}"}, {"prompt": "{q}, please"}


def no_reward(_resources: Mapping[str, Resource], _task: Task) -> None:
    return None


def requests_of(session: PromptSession) -> list[RolloutRequest]:
    assert isinstance(session.context, ScriptedPromptContext)
    return session.context.requests


async def test_all_candidates_run_at_once_and_scores_come_in_order() -> None:
    session = session_of()
    rows = [TaskRow(2), TaskRow(0)]
    found = await session.runner.evaluate([(BETTER, rows), (START, rows[:1])])
    assert [[one.score for one in scored] for scored in found] == [[0.11, 0.11], [0.03]]
    assert [(request.row, request.held_out) for request in requests_of(session)] == [(2, None), (0, None), (2, None)]
    assert [one.rollout_id for one in session.search.evaluations] == [one.rollout_id for one in (*found[0], *found[1])]


async def test_equal_rollouts_of_a_step_run_once_and_repeats_run_again() -> None:
    session = session_of()
    rows = [TaskRow(0), TaskRow(1)]
    await session.runner.evaluate([(START, rows), (START, rows)])
    await session.runner.evaluate([(START, rows)])
    assert len(requests_of(session)) == len(session.search.evaluations) == 2
    await session.runner.evaluate([(START, rows)], repeat=1)
    session.step = 2
    await session.runner.evaluate([(START, rows)])
    assert len(requests_of(session)) == len(session.search.evaluations) == 6


async def test_training_and_validation_never_share_a_rollout() -> None:
    session = session_of(validation="val")
    assert {row.key for row in session.training} == {"train/0", "train/1", "train/2", "train/3"}
    assert {row.key for row in session.validation} == {"val/0", "val/1"}
    await session.runner.evaluate([(START, [TaskRow(0), TaskRow(0, "val")])])
    assert [(request.row, request.held_out) for request in requests_of(session)] == [(0, None), (0, "val")]
    assert [(one.row, one.held_out) for one in session.search.evaluations] == [(0, None), (0, "val")]


async def test_what_does_not_fit_the_budget_does_not_begin() -> None:
    session = session_of(budget=BudgetOptions(rollouts=3))
    await session.runner.evaluate([(START, session.training)])
    with pytest.raises(BudgetSpent, match="2 of 3 rollouts are spent, and the next batch has 2"):
        await session.runner.evaluate([(BETTER, session.training)])
    await session.runner.evaluate([(START, session.training), (BETTER, session.training[:1])])
    assert len(requests_of(session)) == 3


async def test_a_rollout_without_a_reward_ends_the_run() -> None:
    context = ScriptedPromptContext(["a", "b"], {"prompt": PromptTemplate(template="{q}")}, no_reward)
    session = PromptSession(context, PromptAlgorithmOptions(), [])
    with pytest.raises(TrainingError, match="cannot be scored: it has no reward"):
        await session.runner.evaluate([(START, session.training)])


async def test_a_finished_step_is_read_from_the_record_and_may_not_differ() -> None:
    first = session_of()
    await first.runner.evaluate([(START, first.training)])
    first.save()
    again = session_of(state=first.context.state, step=1)
    (scored,) = await again.runner.evaluate([(START, again.training)])
    assert [(one.score, one.result) for one in scored] == [(0.03, None), (0.03, None)]
    assert requests_of(again) == []
    with pytest.raises(TrainingError, match="step 1 of the search ran differently when it was repeated"):
        await again.runner.evaluate([(BETTER, again.training)])


async def test_a_step_that_was_not_finished_is_counted_once() -> None:
    first = session_of()
    await first.runner.evaluate([(START, first.training)])
    first.save()
    again = session_of(state=first.context.state, step=0)
    assert again.search.evaluations == []
    await again.runner.evaluate([(START, again.training)])
    assert len(again.search.evaluations) == 2


async def test_results_can_be_freed_and_scores_stay() -> None:
    session = session_of()
    (before,) = await session.runner.evaluate([(START, session.training)])
    assert all(one.result is not None for one in before)
    session.runner.forget_results()
    (after,) = await session.runner.evaluate([(START, session.training)])
    assert [(one.score, one.result) for one in after] == [(0.03, None), (0.03, None)]
