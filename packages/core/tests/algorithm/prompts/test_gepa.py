"""GEPA: the library searches, and Leyden runs, reflects, counts and records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prompt_crashes import run_with_crashes
from prompt_sessions import hinted, texts_published

from leyden.core.algorithm.prompts import gepa
from leyden.core.algorithm.prompts.budget import BudgetOptions
from leyden.core.algorithm.prompts.evaluation import TaskRow
from leyden.core.algorithm.prompts.gepa import GEPA, GEPAConfig
from leyden.core.algorithm.prompts.search import Candidate, read_search
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.data.resources import PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError
from leyden.core.testing.prompts.contract import PromptAlgorithmContract
from leyden.core.testing.prompts.hints import SENTENCES, hinted_tasks
from leyden.core.testing.prompts.reflection import ScriptedReflection, add_demanded, forget_variables
from leyden.core.testing.prompts.scripted_context import RewardOf, ScriptedPromptContext

TASKS = hinted_tasks(12)


async def run(
    config: GEPAConfig,
    reflect: Any = add_demanded,
    *,
    steps: int = 4,
    reward: RewardOf = hinted,
    tasks: Sequence[Task] = TASKS,
    held_out: Mapping[str, Sequence[Task]] | None = None,
) -> ScriptedPromptContext:
    resources: Mapping[str, Resource] = {"prompt": PromptTemplate(template="{question}")}
    context = ScriptedPromptContext(tasks, dict(resources), reward, steps=steps, reflect=reflect, held_out=held_out)
    await GEPA(config).run(context)
    return context


def candidates(context: ScriptedPromptContext) -> list[Candidate]:
    return read_search(context.state).candidates


async def test_sentences_that_only_hints_demand_are_found() -> None:
    context = await run(GEPAConfig())
    assert all(sentence in texts_published(context)[-1] for sentence in SENTENCES.values())
    assert context.lines[-1]["reward"] == 1.0
    start, *made = candidates(context)
    assert len(start.scores) == 6
    assert all(one.origin == "reflection" and one.after is not None and one.before is not None for one in made)
    assert all(one.after is not None and one.before is not None and one.after > one.before for one in made)


async def test_training_and_validation_never_share_a_cache_entry() -> None:
    """Row 0 of both sets is worth another score. The library caches evaluations by the ids of the tasks."""
    tasks, held_out = ["train"] * 3, {"val": ["val"] * 3}

    def reward(resources: Mapping[str, Resource], task: Task) -> float:
        prompt = resources["prompt"]
        assert isinstance(prompt, PromptTemplate)
        return (1.0 if task == "train" else 0.5) if "better" in prompt.template else 0.0

    config = GEPAConfig(validation="val", minibatch=3)
    context = await run(
        config,
        ScriptedReflection("```\n{question} better\n```"),
        steps=1,
        tasks=tasks,
        held_out=held_out,
        reward=reward,
    )
    better = candidates(context)[1]
    assert better.after == 1.0
    assert better.scores == {f"val/{row}": 0.5 for row in range(3)}
    rows = {(request.held_out, request.row) for request in context.requests if request.resources_id}
    assert rows == {(name, row) for name in (None, "val") for row in range(3)}


def test_ids_of_tasks_name_the_set() -> None:
    training = getattr(gepa, "_Tasks")([TaskRow(0), TaskRow(1)])  # noqa: B009 -- private, and read by the library
    validation = getattr(gepa, "_Tasks")([TaskRow(0, "val"), TaskRow(1, "val")])  # noqa: B009
    assert not set(training.all_ids()) & set(validation.all_ids())
    assert validation.fetch(["val/1"]) == [TaskRow(1, "val")]
    assert len(training) == 2


async def test_a_text_that_lost_a_variable_is_repaired_or_recorded() -> None:
    context = await run(GEPAConfig(), forget_variables)
    assert all(sentence in texts_published(context)[-1] for sentence in SENTENCES.values())
    never = await run(GEPAConfig(), ScriptedReflection("```\nno variable\n```"), steps=1)
    (_start, rejected) = candidates(never)
    assert rejected.rejected == "prompt: the new text lacks the variable question"
    assert rejected.resources_id == ""
    assert texts_published(never)[-1] == "{question}"


async def test_a_worse_candidate_is_recorded_as_rejected() -> None:
    def reward(resources: Mapping[str, Resource], _task: Task) -> float:
        prompt = resources["prompt"]
        assert isinstance(prompt, PromptTemplate)
        return 0.5 if prompt.template == "{question}" else 0.25

    context = await run(GEPAConfig(), ScriptedReflection("```\n{question}!\n```"), steps=1, reward=reward)
    (_start, worse) = candidates(context)
    assert (worse.before, worse.after) == (0.5, 0.25)
    assert "not better than its parent" in worse.rejected


async def test_the_reflection_template_is_the_users() -> None:
    config = GEPAConfig(reflection_template="MINE <curr_param> AND <side_info>")
    context = await run(config, ScriptedReflection("```\n{question}!\n```"), steps=1)
    assert context.reflections[0][0]["content"].startswith("MINE {question} AND ")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"minibatch": 0}, "minibatch must be at least 1"),
        ({"proposals": 0}, "proposals must be at least 1"),
        ({"merges": -1}, "merges must be at least 0"),
        ({"reflection_template": "no place"}, "reflection_template must have <curr_param> and <side_info>"),
        ({"selection": "best"}, "selection"),
    ],
)
def test_options_that_cannot_work_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_algorithm("gepa", settings)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(_name: str) -> None:
        return None

    monkeypatch.setattr(gepa, "find_spec", not_found)
    with pytest.raises(UsageError, match=r"needs the library gepa, which is not installed: pip install 'leyden-core"):
        make_algorithm("gepa", {}).check_steps(1)


async def test_a_failure_of_a_rollout_ends_the_run_with_its_own_error() -> None:
    def no_reward(_resources: Mapping[str, Resource], _task: Task) -> None:
        return None

    with pytest.raises(Exception, match="cannot be scored: it has no reward"):
        await run(GEPAConfig(), reward=no_reward)


@pytest.mark.parametrize("rollouts", [6, 13, 20, 31, 50])
async def test_a_budget_of_rollouts_is_spent_exactly(rollouts: int) -> None:
    context = await run(GEPAConfig(budget=BudgetOptions(rollouts=rollouts)), steps=50)
    assert len(context.requests) == len(read_search(context.state).evaluations) == rollouts
    assert context.steps == context.step < 50


@pytest.mark.parametrize(
    "config",
    [
        GEPAConfig(),
        GEPAConfig(proposals=2),
        GEPAConfig(budget=BudgetOptions(rollouts=31)),
        GEPAConfig(budget=BudgetOptions(tokens=5)),
    ],
)
async def test_a_crash_at_any_operation_repeats_nothing(config: GEPAConfig) -> None:
    def make() -> GEPA:
        return GEPA(config)

    whole, operations = await run_with_crashes(make, TASKS, hinted, forget_variables, steps=3)
    assert whole.runs == len(whole.search.evaluations)
    for crash in range(1, operations + 1):
        for crashes in ([crash], [crash, 3])[: 2 if crash % 5 == 0 else 1]:
            found, _ = await run_with_crashes(make, TASKS, hinted, forget_variables, steps=3, crashes=crashes)
            assert (found.runs, found.reflections) == (whole.runs, whole.reflections), crashes
            assert found.versions == whole.versions, crashes
            assert found.search.candidates == whole.search.candidates, crashes
            assert len(found.search.evaluations) == found.runs, crashes
            assert found.search.unused == {}, crashes


@pytest.mark.long
@pytest.mark.timeout(600)
class TestContract(PromptAlgorithmContract):
    algorithm = "gepa"

    @pytest.mark.campaign  # two algorithms whose steps are shorter are killed in the long tests
    def test_a_run_killed_at_six_points_repeats_nothing(self, tmp_path: Path) -> None:
        super().test_a_run_killed_at_six_points_repeats_nothing(tmp_path)
