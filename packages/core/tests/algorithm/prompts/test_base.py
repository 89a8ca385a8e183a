import pytest
from prompt_sessions import Answering, hinted, session_of

from leyden.core.algorithm.language_model import LanguageModel, ModelOptions
from leyden.core.algorithm.prompts.base import PromptAlgorithm, PromptAlgorithmOptions, PromptSession, split_tasks
from leyden.core.algorithm.prompts.budget import BudgetOptions
from leyden.core.data.resources import PromptTemplate
from leyden.core.errors import UsageError
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext


def scripted(session: PromptSession) -> ScriptedPromptContext:
    assert isinstance(session.context, ScriptedPromptContext)
    return session.context


# --- Tasks


@pytest.mark.parametrize(("count", "share", "selecting"), [(2, 0.5, 1), (10, 0.3, 3), (10, 0.01, 1), (3, 0.99, 2)])
def test_training_tasks_are_divided_and_no_task_is_in_both(count: int, share: float, selecting: int) -> None:
    session = session_of([f"t{n}" for n in range(count)], validation_share=share)
    training, validation = [row.row for row in session.training], [row.row for row in session.validation]
    assert len(validation) == selecting
    assert sorted(training + validation) == list(range(count))


def test_the_division_depends_on_the_seed_alone() -> None:
    context = scripted(session_of([f"t{n}" for n in range(20)]))
    options = PromptAlgorithmOptions()
    first = split_tasks(context, options)
    assert split_tasks(context, options) == first
    context.seed = 1
    assert split_tasks(context, options) != first


def test_a_held_out_set_selects_if_it_is_named() -> None:
    session = session_of(validation="val")
    assert [row.key for row in session.validation] == ["val/0", "val/1"]
    assert len(session.training) == 4
    with pytest.raises(UsageError, match="validation=test: the run has no such held-out set; it has val"):
        session_of(validation="test")


def test_one_task_cannot_be_divided() -> None:
    with pytest.raises(UsageError, match="1 training task cannot be divided"):
        session_of(["a"])


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(UsageError, match="validation_share must be between 0 and 1"):
        PromptAlgorithmOptions(validation_share=share)


# --- Candidates


async def test_a_candidate_is_recorded_with_what_it_was_made_from() -> None:
    session = session_of()
    made = await session.add(
        {"prompt": "{q}!"}, origin="edit", parents=[0], reason="why", rollouts=["ro-1"], before=0.1, after=0.2
    )
    assert (made.number, made.parents, made.changed, made.step, made.reason) == (1, (0,), ("prompt",), 1, "why")
    assert (made.rollouts, made.before, made.after, made.rejected) == (("ro-1",), 0.1, 0.2, "")
    assert made.resources_id == await session.runner.version({"prompt": "{q}!"})
    assert session.search.candidates == [session.start, made]
    shown = "candidate 1 (from 0, prompt): 0.100 → 0.200 on the tasks it was made from"
    assert scripted(session).shown == [shown]
    assert await session.add({"prompt": "{q}!"}, origin="edit", parents=[0]) is made


async def test_a_candidate_that_cannot_run_has_no_version() -> None:
    session = session_of()
    made = await session.add({"prompt": "!"}, origin="edit", parents=[0], rejected="it lost q")
    assert (made.resources_id, made.rejected) == ("", "it lost q")
    assert scripted(session).shown == ["candidate 1 (from 0, prompt); rejected: it lost q"]


async def test_what_a_step_left_unfinished_is_forgotten() -> None:
    first = session_of(validation="val")
    (scored,) = await first.runner.evaluate([(first.start.texts, first.validation)])
    first.note_scores(first.start, scored)
    await first.add({"prompt": "{q}!"}, origin="edit", parents=[0])
    first.save()
    again = session_of(validation="val", state=first.context.state, step=0)
    assert [one.number for one in again.search.candidates] == [0]
    assert again.start.score is None, "the rollouts behind its scores count again when the step is repeated"
    later = session_of(validation="val", state=first.context.state, step=1)
    assert [one.number for one in later.search.candidates] == [0, 1]
    assert later.start.score == pytest.approx(0.03)


async def test_the_best_candidate_is_the_earliest_of_equals_and_never_a_rejected_one() -> None:
    session = session_of()
    assert session.best() is session.start
    for text, score, rejected in (("a", 0.5, ""), ("b", 0.5, ""), ("c", 0.9, "worse")):
        one = await session.add({"prompt": "{q}" + text}, origin="edit", parents=[0], rejected=rejected)
        one.scores = {"train/0": score}
    assert session.best().number == 1


# --- The end


async def test_what_is_left_of_the_budget_compares_the_best_two() -> None:
    session = session_of(["a", "b", "c", "d", "e"], validation_share=0.6, budget=BudgetOptions(rollouts=20))
    for text in ("!", "!!"):
        await session.add({"prompt": "{q}" + text}, origin="edit", parents=[0])
    session.step = 1
    found = await session.runner.evaluate([(one.texts, session.validation) for one in session.search.candidates])
    for one, scored in zip(session.search.candidates, found, strict=True):
        session.note_scores(one, scored)
    assert session.budget.rollouts_left == 11
    await session.end_early("because", {"candidates": 3})
    context = scripted(session)
    assert session.budget.rollouts_left == 0
    assert len(context.requests) == len(session.search.evaluations) == 20
    again = context.requests[9:]
    assert {request.resources_id for request in again} == {one.resources_id for one in session.search.candidates[1:]}
    assert len(set(again)) == 11
    assert (session.search.ended, session.search.ended_in, context.steps) == ("because", 1, 1)
    assert context.shown[-1] == "the search ends: because"
    assert context.versions[-1]["prompt"] == PromptTemplate(template="{q}!!")
    expected = {"reward": pytest.approx(0.05), "candidates": 3, "best": 2, "spent_rollouts": 20, "left_rollouts": 0}
    assert expected.items() <= context.lines[-1].items()
    assert context.lines[-1]["notes"]["ended"] == "because"


async def test_two_finalists_with_one_text_spend_the_budget_too() -> None:
    session = session_of(["a", "b", "c"], budget=BudgetOptions(rollouts=9))
    session.search.candidates.append(session.start)
    (scored,) = await session.runner.evaluate([(session.start.texts, session.validation)])
    session.note_scores(session.start, scored)
    await session.end_early("because", {})
    assert session.budget.rollouts_left == 0


async def test_without_a_budget_the_best_is_published_at_once() -> None:
    session = session_of()
    await session.runner.evaluate([(session.start.texts, session.validation)])
    await session.end_early("because", {})
    assert len(scripted(session).requests) == 2
    (line,) = scripted(session).lines
    assert (line["spent_rollouts"], line["best"], "left_rollouts" in line) == (2, 0, False)


# --- The algorithm


class TwoModels(PromptAlgorithmOptions, frozen=True, kw_only=True):
    def models(self) -> tuple[ModelOptions, ...]:
        return (ModelOptions(model="one"), ModelOptions(model="two"))


class Raising(PromptAlgorithm):
    name = "raising"
    Config = TwoModels

    async def search(self, session: PromptSession) -> None:
        raise RuntimeError("stop")


class Models(ScriptedPromptContext):
    fails = False

    def language_model(self, options: ModelOptions) -> LanguageModel:
        if options.model == "two" and self.fails:
            raise UsageError("no such model")
        self.opened = [*getattr(self, "opened", ()), Answering()]
        return self.opened[-1]


@pytest.mark.parametrize("fails", [False, True])
async def test_every_model_is_closed_whatever_happens(fails: bool) -> None:
    context = Models(["a", "b"], {"prompt": PromptTemplate(template="{question}")}, hinted)
    context.fails = fails
    with pytest.raises(UsageError if fails else RuntimeError):
        await Raising(TwoModels()).run(context)
    assert [model.closed for model in context.opened] == [1] * (1 if fails else 2)
