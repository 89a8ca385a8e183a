import pytest
from prompt_sessions import Answering, session_of

from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.base import PromptSession
from leyden.core.algorithm.prompts.budget import BudgetOptions, BudgetSpent
from leyden.core.algorithm.prompts.reflection import MOST_FAILURES, Reflector
from leyden.core.algorithm.prompts.search import PromptSearch
from leyden.core.errors import TrainingError


def said(*texts: str) -> list[list[Message]]:
    return [[{"role": "user", "content": text}] for text in texts]


def reflector(session: PromptSession, *models: Answering, finished: int = 0) -> Reflector:
    return Reflector(models, session.search, session.budget, session.save, finished)


async def test_answers_are_saved_at_once_and_a_resumed_run_sends_nothing_again() -> None:
    session, model = session_of(), Answering()
    first = reflector(session, model)
    first.step = 1
    answers = await first.complete(said("a", "b"))
    assert answers == ["answer 1 to a", "answer 2 to b"]
    again = session_of(state=session.context.state)
    assert (again.search.reflections, len(again.search.unused)) == ({}, 2)
    assert again.budget.tokens == 0, "a step counts what it uses when it is repeated"
    second = reflector(again, model)
    second.step = 1
    assert await second.complete(said("a", "b", "c")) == [*answers, "answer 3 to c"]
    assert model.seen == ["a", "b", "c"]
    assert (again.budget.tokens, again.search.unused) == (9, {})


async def test_a_number_without_a_call_keeps_the_numbers_of_the_others() -> None:
    session, model = session_of(), Answering()
    model.fails = {"a"}
    first = reflector(session, model)
    first.step = 1
    assert await first.complete(said("a", "b")) == [None, "answer 2 to b"]
    assert await first.complete([None, *said("edit of b")]) == [None, "answer 3 to edit of b"]
    again = session_of(state=session.context.state)
    model.fails = set()
    second = reflector(again, model)
    second.step = 1
    assert await second.complete(said("a", "b")) == ["answer 4 to a", "answer 2 to b"], "only the failed call is sent"
    assert await second.complete(said("edit of a", "edit of b")) == ["answer 5 to edit of a", "answer 3 to edit of b"]


async def test_a_finished_step_keeps_its_failures() -> None:
    session, model = session_of(), Answering()
    model.fails = {"a"}
    first = reflector(session, model)
    first.step = 1
    await first.complete(said("a"))
    session.save()
    again = session_of(state=session.context.state, step=1)
    second = reflector(again, model, finished=1)
    second.step = 1
    assert await second.complete(said("a")) == [None]
    assert model.seen == ["a"]


async def test_each_call_goes_to_the_model_of_its_number() -> None:
    session, one, other = session_of(), Answering(), Answering()
    both = reflector(session, one, other)
    await both.complete(said("a"))
    await both.complete(said("b"), model=-1)
    assert (one.seen, other.seen) == (["a"], ["b"])


async def test_a_model_that_never_answers_ends_the_run() -> None:
    session, model = session_of(), Answering()
    model.fails = {"a"}
    with pytest.raises(TrainingError, match=f"{MOST_FAILURES} calls of the reflection model failed in a row"):
        await reflector(session, model).complete(said(*["a"] * MOST_FAILURES))


async def test_an_answer_in_between_resets_the_failures() -> None:
    session, model = session_of(), Answering()
    model.fails = {"a"}
    some = said(*["a"] * (MOST_FAILURES - 1))
    found = await reflector(session, model).complete([*some, *said("b"), *some])
    assert [one for one in found if one] == [f"answer {MOST_FAILURES} to b"]


async def test_tokens_that_are_spent_stop_new_calls_and_not_repeated_ones() -> None:
    session, model = session_of(budget=BudgetOptions(tokens=3)), Answering()
    first = reflector(session, model)
    first.step = 1
    await first.complete(said("a"))
    with pytest.raises(BudgetSpent, match="3 of 3 tokens"):
        await first.complete(said("b"))
    assert await first.complete([None]) == [None]
    again = session_of(state=session.context.state, budget=BudgetOptions(tokens=3))
    second = reflector(again, model)
    second.step = 1
    assert await second.complete(said("a")) == ["answer 1 to a"]
    with pytest.raises(BudgetSpent, match="3 of 3 tokens"):
        await second.complete(said("b"))
    assert model.seen == ["a"]


def test_a_search_without_a_state_is_empty() -> None:
    assert session_of().search.reflections == PromptSearch().reflections
