from typing import Any

import pytest

from leyden.core.errors import TaskError
from leyden.core.runner.user_code.task_input import MadeInput, mapping_for, text_for

NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("why?", "why?"),
        ({"question": "why?", "answer": "so"}, "why?"),
        ({"messages": [1], "question": "why?"}, [1]),
        ([{"role": "user", "content": "why?"}], [{"role": "user", "content": "why?"}]),
        (MadeInput({"prompt": "why?"}), "why?"),
    ],
)
def test_a_text_or_messages(task: Any, given: Any) -> None:
    assert text_for(task) == given


def test_an_answer_is_given_only_where_it_is_wanted() -> None:
    row = {"question": "why?", "answer": "so", "more": 1}
    assert mapping_for(row, ("question", "answer"), NONE, {}) == {"question": "why?"}
    assert mapping_for(row, ("question", "answer"), frozenset({"answer"}), {}) == {"question": "why?", "answer": "so"}


def test_what_a_user_made_is_given_as_it_is() -> None:
    made = MadeInput({"question": "why?", "answer": "so", "more": 1})
    assert mapping_for(made, ("question", "answer"), NONE, {"messages": ["why?"]}) == made
    assert mapping_for(MadeInput({"text": "why?"}), ("topic",), NONE, {}) == {"topic": "why?"}


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"q": 1, "a": 2}, "the task has the keys q, a; the agent takes topic; or give --input, a function"),
        ({}, r"the task has the keys \(none\); the agent takes topic; or give --input, a function"),
        (7, "the task is a int; the agent takes topic; or give --input, a function"),
        (MadeInput({"q": 1}), "the result of --input has the keys q; the agent takes topic$"),
    ],
)
def test_an_error_names_the_keys_and_the_way_out(task: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        mapping_for(task, ("topic",), NONE, {})


def test_an_agent_that_takes_a_text_says_so() -> None:
    with pytest.raises(
        TaskError, match=r"keys q; the agent takes a text under the key question, .* or problem, or mess"
    ):
        text_for({"q": 1})
    for value, says in ((None, "null"), (5, "of type int, not a text"), (["a"], "of type list, not a text")):
        with pytest.raises(TaskError, match=f"keys id, question, of which question is {says}; the agent takes a text"):
            text_for({"id": 1, "question": value})
    with pytest.raises(TaskError, match=r"the result of --input has the keys q; .* or messages$"):
        text_for(MadeInput({"q": 1}))
