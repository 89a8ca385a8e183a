"""APO: what each round runs, shows, requests and keeps; a run that crashes anywhere repeats nothing."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prompt_crashes import run_with_crashes
from prompt_sessions import hinted, texts_published

from leyden.core.algorithm.language_model import LanguageModel, Message, ModelOptions
from leyden.core.algorithm.prompts.apo import APO
from leyden.core.algorithm.prompts.apo_options import APOConfig
from leyden.core.algorithm.prompts.budget import BudgetOptions
from leyden.core.algorithm.prompts.search import Candidate, read_search
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.resources import PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError
from leyden.core.testing.prompts.contract import PromptAlgorithmContract
from leyden.core.testing.prompts.hints import SENTENCES, hinted_tasks
from leyden.core.testing.prompts.reflection import ADD, ScriptedReflection, add_demanded, forget_variables
from leyden.core.testing.prompts.scripted_context import RewardOf, ScriptedPromptContext

TASKS = hinted_tasks(12)
SMALL: dict[str, Any] = {"beam_width": 2, "branch_factor": 2, "minibatch": 2}


class Batches(ScriptedPromptContext):
    """Also notes which rollouts were requested together, and which models were opened."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.batches: list[list[RolloutRequest]] = []
        self.models: list[ModelOptions] = []

    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        self.batches.append(list(requests))
        return await super().run_tasks(requests)

    def language_model(self, options: ModelOptions) -> LanguageModel:
        self.models.append(options)
        return super().language_model(options)


async def run(
    config: APOConfig,
    reflect: Callable[[Sequence[Message]], str] = add_demanded,
    *,
    tasks: Sequence[Task] = TASKS,
    reward: RewardOf = hinted,
    steps: int = 3,
    seed: int = 0,
    resources: Mapping[str, Resource] | None = None,
    held_out: Mapping[str, Sequence[Task]] | None = None,
) -> Batches:
    given = resources or {"prompt": PromptTemplate(template="{question}")}
    context = Batches(tasks, given, reward, steps=steps, seed=seed, reflect=reflect, held_out=held_out)
    await APO(config).run(context)
    return context


def candidates(context: ScriptedPromptContext) -> list[Candidate]:
    return read_search(context.state).candidates


def letters(resources: Mapping[str, Resource], _task: Task) -> float:
    """Reward of a prompt: its number of letters `a`."""
    prompt = resources["prompt"]
    assert isinstance(prompt, PromptTemplate)
    return prompt.template.count("a") / 10


def worthless(_resources: Mapping[str, Resource], _task: Task) -> float:
    return 0.0


def gradients_of(context: ScriptedPromptContext) -> list[str]:
    return [one[0]["content"] for one in context.reflections if "## Rollouts" in one[0]["content"]]


# --- The search


async def test_sentences_that_only_hints_demand_are_found() -> None:
    context = await run(APOConfig(**SMALL), steps=4)
    assert all(sentence in texts_published(context)[-1] for sentence in SENTENCES.values())
    assert context.lines[-1]["reward"] == 1.0
    assert context.calls == ["restore", "before", *["publish", "checkpoint"] * 4, "after"]


async def test_every_candidate_is_recorded_with_its_textual_gradient() -> None:
    context = await run(APOConfig(**SMALL), steps=2)
    start, *made = candidates(context)
    assert (start.origin, start.step, start.resources_id != "") == ("start", 0, True)
    assert [one.number for one in made] == list(range(1, len(made) + 1))
    for one in made:
        assert (one.origin, len(one.parents), one.changed in ((), ("prompt",))) == ("edit", 1, True)
        assert one.reason.startswith(ADD) or one.reason == "Nothing is missing."
        assert len(one.rollouts) == 2 and one.before is not None and one.after is None
    known = {one.rollout_id: one for one in read_search(context.state).evaluations}
    parent = candidates(context)[made[-1].parents[0]]
    assert {known[one].resources_id for one in made[-1].rollouts} == {parent.resources_id}


async def test_all_parents_and_branches_run_at_once_on_minibatches_of_their_own() -> None:
    context = await run(APOConfig(beam_width=3, branch_factor=2, minibatch=1, worst=1, best=0), steps=1)
    validation, minibatches, comparison = context.batches
    assert {request.held_out for request in validation} == {None}
    assert len(validation) == 6, "the first prompt on all validation tasks"
    assert len(minibatches) == 6, "three parents times two branches, all with other tasks"
    assert len({request.row for request in minibatches}) == 6
    assert not {request.row for request in minibatches} & {request.row for request in validation}
    assert {request.row for request in comparison} == {request.row for request in validation}
    new = [one for one in candidates(context) if one.step == 1 and one.resources_id and "texts are" not in one.rejected]
    assert Counter(request.resources_id for request in comparison) == {one.resources_id: 6 for one in new}


async def test_a_round_compares_all_candidates_on_the_same_tasks_and_the_best_on_all() -> None:
    config = APOConfig(**SMALL, validation_batch=3, initial_validation=False)
    context = await run(config, lambda messages: add_demanded(messages), steps=3)
    for step in range(3):
        _minibatch, comparison, *rest = context.batches[sum(_lengths(context)[:step]) :][: _lengths(context)[step]]
        rows: dict[str | None, set[int]] = {}
        for request in comparison:
            rows.setdefault(request.resources_id, set()).add(request.row)
        assert len({frozenset(one) for one in rows.values()}) == 1
        assert len(next(iter(rows.values()))) == 3
        for leader in rest:
            assert len({request.resources_id for request in leader}) == 1
            assert len(leader) == 3, "the tasks of the comparison are not run again in the same step"
    scored = [one for one in candidates(context) if one.scores]
    assert all(len(one.scores) == 6 for one in scored)
    assert 1 <= len(scored) <= 3


def _lengths(context: Batches) -> list[int]:
    """Number of requests for rollouts of each step: a minibatch, a comparison, and the best one if it is new."""
    steps: list[int] = []
    found = 0
    training = {row.row for row in _split(context)[0]}
    for batch in context.batches:
        if found and {request.row for request in batch} <= training:
            steps.append(found)
            found = 0
        found += 1
    return [*steps, found]


def _split(context: Batches) -> Any:
    from leyden.core.algorithm.prompts.base import split_tasks

    return split_tasks(context, APOConfig())


async def test_tasks_depend_on_the_seed_and_the_step_alone() -> None:
    first, again, other = [await run(APOConfig(**SMALL), seed=seed) for seed in (5, 5, 6)]
    assert first.requests == again.requests
    assert first.requests != other.requests
    minibatches = [{request.row for request in batch} for batch in first.batches]
    assert len({frozenset(rows) for rows in minibatches[1::2]}) > 1, "each step has its own"


async def test_the_beam_keeps_the_best_and_says_who_is_not_kept() -> None:
    answers = iter("abcdefghijklmnopqrstuvwxyz")

    def reflect(messages: Sequence[Message]) -> str:
        content = messages[0]["content"]
        if "## Rollouts" in content:
            return "why"
        text = content.partition("## The text\n\n")[2].partition("\n\n##")[0]
        return f"<new_prompt>\n{text}{next(answers)}\n</new_prompt>"

    context = await run(APOConfig(**SMALL, edit=ModelOptions(concurrency=1)), reflect, reward=letters, steps=2)
    found = {one.texts["prompt"]: one for one in candidates(context)}
    assert found["{question}a"].rejected == ""
    others = [one for text, one in found.items() if text in ("{question}b", "{question}c", "{question}d")]
    assert [one.rejected for one in others] == ["it is not among the 2 best of its round"] * 3, "the first prompt stays"
    assert {one.parents[0] for one in candidates(context) if one.step == 2} == {0, found["{question}a"].number}
    assert texts_published(context)[1:] == ["{question}a", "{question}a"]


async def test_several_components_change_in_turn() -> None:
    def reflect(messages: Sequence[Message]) -> str:
        content = messages[0]["content"]
        if "## Rollouts" in content:
            return "why"
        return content.partition("## The text\n\n")[2].partition("\n\n##")[0] + "a"

    resources = {name: PromptTemplate(template=f"{name}: {{question}}") for name in ("one", "two", "three")}
    context = await run(
        APOConfig(**SMALL, initial_validation=False), reflect, resources=resources, reward=worthless, steps=3
    )
    changed = {step: [one.changed for one in candidates(context) if one.step == step] for step in (1, 2, 3)}
    assert {one for names in changed.values() for one in names} == {("one",), ("two",), ("three",)}
    assert changed[1] == [("one",), ("two",)], "a branch changes one component, and equal edits are one candidate"
    only = await run(APOConfig(**SMALL, components=["t*"]), reflect, resources=resources, reward=worthless)
    assert {one.changed for one in candidates(only)} == {(), ("two",), ("three",)}


async def test_a_held_out_set_may_select() -> None:
    context = await run(APOConfig(**SMALL, validation="val"), held_out={"val": TASKS[:3]}, steps=1)
    assert {(request.held_out, len(batch)) for batch in context.batches[:1] for request in batch} == {("val", 3)}
    with pytest.raises(UsageError, match="the run has no such held-out set"):
        await run(APOConfig(**SMALL, validation="val"))


# --- What the reflection model reads


async def test_the_worst_and_the_best_rollouts_are_shown() -> None:
    def reward(_resources: Mapping[str, Resource], task: Task) -> tuple[float, str]:
        return int(str(task)) / 10, f"task {task} earned it"

    config = APOConfig(beam_width=1, branch_factor=1, minibatch=5, worst=2, best=1, validation="val")
    context = await run(
        config,
        ScriptedReflection("why"),
        tasks=["1", "2", "3", "4", "5"],
        held_out={"val": ["0"]},
        reward=reward,
        resources={"prompt": PromptTemplate(template="Think.")},
        steps=1,
    )
    (request,) = gradients_of(context)
    shown = [task for task in "12345" if f"task {task} earned it" in request]
    assert shown == ["1", "2", "5"]
    assert request.index("task 1 earned") < request.index("task 2 earned") < request.index("task 5 earned")
    assert "Think." in request and "It has no variables" in request


async def test_equal_rollouts_are_not_shown_twice() -> None:
    config = APOConfig(beam_width=1, branch_factor=1, minibatch=2, worst=3, best=5)
    context = await run(config, steps=1)
    (request,) = gradients_of(context)
    assert request.count("### Rollout ") == 2


async def test_nothing_is_requested_for_a_perfect_minibatch() -> None:
    context = await run(APOConfig(**SMALL, perfect_score=0.0), steps=2)
    assert context.reflections == []
    assert len(candidates(context)) == 1
    assert context.step == 2
    improved = await run(APOConfig(**SMALL, perfect_score=1.0), steps=5)
    always = await run(APOConfig(**SMALL), steps=5)
    assert texts_published(improved)[-1] == texts_published(always)[-1]
    assert len(improved.reflections) < len(always.reflections)


async def test_own_templates_are_used_in_turn() -> None:
    config = APOConfig(
        beam_width=1,
        branch_factor=2,
        minibatch=1,
        gradient_template=["A <prompt> <rollouts>", "B <prompt> <rollouts>"],
        edit_template="C <prompt> by <gradient>",
    )
    reflect = ScriptedReflection("{question} new")
    context = await run(config, reflect, steps=1)
    sent = [one[0]["content"].partition("\n")[0] for one in context.reflections]
    assert [one[:12] for one in sent] == ["A {question}", "B {question}", "C {question}", "C {question}"]
    assert sent[2] == "C {question} by {question} new"
    assert candidates(context)[1].texts == {"prompt": "{question} new"}


# --- Texts that cannot be used


async def test_a_text_that_lost_a_variable_is_repaired() -> None:
    context = await run(APOConfig(**SMALL), forget_variables, steps=4)
    assert all(sentence in texts_published(context)[-1] for sentence in SENTENCES.values())
    repairs = [one for one in context.reflections if len(one) == 3]
    assert repairs and all("lacks the variable question" in one[2]["content"] for one in repairs)


async def test_a_text_that_stays_wrong_is_recorded_and_never_runs() -> None:
    context = await run(APOConfig(**SMALL), ScriptedReflection("no variable"), steps=2)
    _start, *made = candidates(context)
    assert [one.rejected for one in made] == ["prompt: the new text lacks the variable question"] * 2
    assert [one.resources_id for one in made] == ["", ""]
    assert texts_published(context) == ["{question}"] * 3


async def test_a_text_that_is_not_new_is_recorded_and_does_not_run_again() -> None:
    context = await run(APOConfig(**SMALL), ScriptedReflection("{question}"), steps=1)
    _start, copy = candidates(context)
    assert (copy.changed, copy.rejected) == ((), "its texts are those of candidate 0")
    assert len(context.batches) == 2, "the validation of the first prompt, and one minibatch"


async def test_a_call_that_fails_leaves_out_its_candidate() -> None:
    calls = 0

    def reflect(messages: Sequence[Message]) -> str:
        nonlocal calls
        calls += 1
        if calls in (2, 6):
            from leyden.core.algorithm.language_model import ModelCallError

            raise ModelCallError("busy")
        return add_demanded(messages)

    context = await run(APOConfig(**SMALL), reflect, steps=1)
    assert calls == 4 + 3, "no edit is requested without a textual gradient"
    assert context.step == 1


# --- Models


async def test_one_model_does_both_unless_another_applies_edits() -> None:
    one = await run(APOConfig(**SMALL, reflection=ModelOptions(model="r")), steps=1)
    assert [(model.model, model.temperature) for model in one.models] == [("r", 1.0)]
    config = APOConfig(
        **SMALL,
        reflection=ModelOptions(model="r", temperature=0.2),
        edit=ModelOptions(model="e"),
        diversity_temperature=0.7,
    )
    two = await run(config, steps=1)
    assert [(model.model, model.temperature) for model in two.models] == [("r", 0.2), ("e", 0.7)]
    none = await run(APOConfig(**SMALL, diversity_temperature=None), steps=1)
    assert [model.temperature for model in none.models] == [None]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"beam_width": 0}, "beam_width must be at least 1, not 0"),
        ({"branch_factor": 0}, "branch_factor must be at least 1"),
        ({"minibatch": 0}, "minibatch must be at least 1"),
        ({"worst": 0}, "worst must be at least 1"),
        ({"best": -1}, "best must be at least 0"),
        ({"validation_batch": 0}, "validation_batch must be at least 1"),
        ({"diversity_temperature": -0.1}, "diversity_temperature must not be negative"),
        ({"validation_share": 1}, "validation_share must be between 0 and 1"),
        ({"beam": 2}, "unknown field `beam`"),
    ],
)
def test_options_that_cannot_work_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_algorithm("apo", settings)


def test_a_run_records_the_templates_and_not_their_files(tmp_path: Any) -> None:
    (tmp_path / "edit.txt").write_text("<prompt> <gradient>")
    given = {"edit_template": str(tmp_path / "edit.txt"), "beam_width": 2}
    algorithm = make_algorithm("apo", given)
    assert algorithm.recorded(given) == {"edit_template": ["<prompt> <gradient>"], "beam_width": 2}


# --- Budget and crashes


@pytest.mark.parametrize("rollouts", [6, 7, 13, 20, 31, 50])
async def test_a_budget_of_rollouts_is_spent_exactly(rollouts: int) -> None:
    context = await run(APOConfig(**SMALL, budget=BudgetOptions(rollouts=rollouts)), steps=50)
    spent = len(context.requests)
    assert spent == len(read_search(context.state).evaluations) == context.lines[-1]["spent_rollouts"]
    assert spent == rollouts
    assert context.shown[-1].startswith("the search ends: ")
    assert context.steps == context.step < 50


async def test_a_budget_that_is_too_small_for_the_first_rollouts_is_refused() -> None:
    says = "the budget is too small to begin: 0 of 5 rollouts are spent, and the next batch has 6"
    with pytest.raises(UsageError, match=says):
        await run(APOConfig(**SMALL, budget=BudgetOptions(rollouts=5)))


async def test_a_budget_of_tokens_ends_the_search() -> None:
    context = await run(APOConfig(**SMALL, budget=BudgetOptions(tokens=20)), steps=50)
    assert context.lines[-1]["spent_tokens"] >= 20
    assert "of 20 tokens are spent" in context.shown[-1]


@pytest.mark.parametrize("budget", [BudgetOptions(), BudgetOptions(rollouts=31), BudgetOptions(tokens=40)])
async def test_a_crash_at_any_operation_repeats_nothing(budget: BudgetOptions) -> None:
    def make() -> APO:
        return APO(APOConfig(**SMALL, validation_batch=3, budget=budget))

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
    algorithm = "apo"
    settings = (*(f"{name}={json.dumps(value)}" for name, value in SMALL.items()),)

    @pytest.mark.campaign  # two algorithms whose steps are shorter are killed in the long tests
    def test_a_run_killed_at_six_points_repeats_nothing(self, tmp_path: Path) -> None:
        super().test_a_run_killed_at_six_points_repeats_nothing(tmp_path)
