"""What a user's function is called with: whole calls, each against one row."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Optional, TypedDict

import pytest
from pydantic import BaseModel

from leyden.core.errors import TaskError
from leyden.core.runner.adapters.builtin import FunctionAdapter
from leyden.core.runner.user_code.arguments import TEXT_NAMES, arguments_for, takes_task
from leyden.core.runner.user_code.task_input import MadeInput

ROW: dict[str, Any] = {"question": "2+2?", "id": 7, "answer": "4", "context": {"page": 1}}


class Row(TypedDict):
    question: str


class Question(BaseModel):
    question: str


@dataclass
class Problem:
    text: str


class Bot:
    def run(self, question: str) -> Any:
        return question

    def __call__(self, task: Any) -> Any:
        return task


def given_to(function: Callable[..., Any], task: Any = ROW) -> Any:
    """What `function`, which returns its arguments, is given."""
    return arguments_for(function, task).call(function)


# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# A lambda is the shortest way to write a parameter's name.


@pytest.mark.parametrize("function", [lambda task: task, lambda row: row, lambda x: x, lambda example, k=1: example])
def test_a_function_of_one_task_gets_the_row(function: Callable[..., Any]) -> None:
    assert given_to(function) is ROW


def typed(annotation: Any, name: str = "task") -> Callable[..., Any]:
    """A function of one parameter."""
    scope: dict[str, Any] = {"annotation": annotation}
    exec(f"def agent({name}: annotation): return {name}", scope)
    return scope["agent"]


@pytest.mark.parametrize(
    "annotation", [dict, dict[str, Any], Mapping[str, Any], Row, Any, object, dict | None, str | dict[str, Any], Bot]
)
def test_an_annotation_that_admits_a_row_gets_it(annotation: Any) -> None:
    assert given_to(typed(annotation)) is ROW


@pytest.mark.parametrize("annotation", [str, Optional[str], str | None, Annotated[str, "doc"], str | Sequence[int]])  # noqa: UP045
@pytest.mark.parametrize("name", ["task", "question", "prompt", "anything"])
def test_an_annotation_of_a_text_gets_the_rows_text(annotation: Any, name: str) -> None:
    assert given_to(typed(annotation, name)) == "2+2?"


def test_an_annotation_that_only_type_checkers_can_evaluate_is_read_as_it_stands() -> None:
    def agent(task: Any, other: Any = None) -> Any:
        return task

    agent.__annotations__.update(task="str", other="NoSuchName")
    assert given_to(agent) == "2+2?"


def test_a_parameter_gets_what_the_row_has_by_its_name() -> None:
    assert given_to(lambda question: question) == "2+2?"
    for name in TEXT_NAMES:
        assert given_to(eval(f"lambda {name}: {name}")) == "2+2?", f"{name}: not the row, which has the answer"
    assert given_to(lambda id: id) == 7
    assert given_to(typed(int, "id")) == 7
    assert given_to(typed(dict, "context")) == {"page": 1}
    assert given_to(lambda task: task, {"task": "sums", "question": "2+2?"}) == {"task": "sums", "question": "2+2?"}
    assert given_to(typed(str), {"task": "sums", "question": "2+2?"}) == "sums"


def test_a_parameter_named_like_a_text_gets_the_text_under_whatever_name() -> None:
    assert given_to(lambda query: query) == "2+2?"
    assert given_to(lambda input: input, {"a": 1}) == {"a": 1}


def test_messages_are_given_as_messages() -> None:
    messages = [{"role": "user", "content": "2+2?"}]
    assert given_to(lambda messages: messages) == messages
    assert given_to(typed(list[dict[str, str]], "messages")) == messages
    assert given_to(typed(list, "history"), {"messages": messages, "id": 1}) is messages
    assert given_to(lambda task: task, messages) is messages


def test_several_parameters_get_the_keys_of_their_names() -> None:
    assert given_to(lambda question, id: (question, id)) == ("2+2?", 7)
    assert given_to(lambda id, *, question: (question, id)) == ("2+2?", 7)
    assert given_to(lambda prompt, id: (prompt, id)) == ("2+2?", 7)
    assert given_to(lambda task, id: (task, id)) == (ROW, 7)


def test_an_answer_is_given_only_to_who_demands_it() -> None:
    assert given_to(lambda question, answer: answer) == "4"
    assert given_to(lambda question, answer=None, id=0: (answer, id)) == (None, 7)
    assert given_to(lambda **row: row) == {"question": "2+2?", "id": 7, "context": {"page": 1}}
    assert given_to(lambda question, **more: more) == {"id": 7, "context": {"page": 1}}
    made = MadeInput(ROW)
    assert given_to(lambda question, answer=None: answer, made) == "4"
    assert given_to(lambda **row: row, made) == ROW


def test_who_gets_the_row_gets_nothing_of_it_twice() -> None:
    assert given_to(lambda task, id=None, **more: (task, id, more)) == (ROW, None, {})


def test_of_parameters_with_defaults_the_one_meant_for_the_task_is_chosen() -> None:
    assert given_to(lambda verbose=False, question="": (verbose, question)) == (False, "2+2?")
    assert given_to(lambda model="m", task=None: (model, task)) == ("m", ROW)
    assert given_to(lambda first=None, second=None: (first, second)) == (ROW, None)


def test_a_function_that_names_no_parameter_gets_no_row_with_its_answer() -> None:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with pytest.raises(TaskError, match=r"wrapper\(.*\) has no named parameter.*functools\.wraps.*--input"):
        given_to(wrapper)
    with pytest.raises(TaskError, match=r"has no named parameter"):
        given_to(lambda *args: args)
    assert given_to(wrapper, "2+2?") == (("2+2?",), {})
    assert given_to(wrapper, MadeInput(anything=1)) == ((MadeInput(anything=1),), {})


def test_wrappers_methods_and_partials_are_seen_through() -> None:
    @functools.wraps(Bot.run)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert given_to(functools.partial(wrapper, None)) == ((None, "2+2?"), {})
    assert given_to(Bot().run) == "2+2?"
    assert given_to(Bot()) is ROW
    assert given_to(functools.partial(lambda model, question, id: (model, question, id), "m")) == ("m", "2+2?", 7)
    assert given_to(functools.partial(lambda question, model: (question, model), model="m")) == ("2+2?", "m")


def test_what_a_partial_fixes_is_not_given_from_the_row() -> None:
    assert given_to(functools.partial(lambda question, id: (question, id), id=9)) == ("2+2?", 9)
    assert given_to(functools.partial(lambda **row: row, id=9)) == {"question": "2+2?", "context": {"page": 1}, "id": 9}
    assert given_to(functools.partial(lambda question, **row: row, id=9)) == {"context": {"page": 1}, "id": 9}
    assert not takes_task(functools.partial(lambda question: question, question="1+1?"))
    assert given_to("".join, ["a", "b"]) == "ab"


@pytest.mark.parametrize("function", [lambda task: task, typed(str, "question"), lambda **row: row, lambda *a: a[0]])
def test_a_task_that_is_a_text_is_the_argument(function: Callable[..., Any]) -> None:
    if function.__code__.co_argcount or function.__code__.co_flags & 4:
        assert given_to(function, "2+2?") == "2+2?"


@pytest.mark.parametrize(
    ("function", "task", "says"),
    [
        (
            typed(str),
            {"colour": "red"},
            "the task has the keys colour; agent(task: str) takes a text under the key question",
        ),
        (
            lambda question: None,
            {"colour": "red"},
            "keys colour; <lambda>(question) takes a text under the key question",
        ),
        (lambda question, colour: None, ROW, "<lambda>(question, colour) needs colour"),
        (lambda a, b: None, ROW, "<lambda>(a, b) needs a, b"),
        (lambda question, id: None, "2+2?", "the task is a str; <lambda>(question, id) needs question, id"),
        (typed(Question), ROW, "agent(task: test_arguments.Question) needs a value of type Question"),
        (typed(Problem), ROW, "needs a value of type Problem"),
        (typed(int), ROW, "agent(task: int) needs a value of type int"),
        (typed(list[str], "lines"), ROW, "takes a list under the key lines"),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_keys_signature_and_what_to_do(
    function: Callable[..., Any], task: Any, says: str
) -> None:
    with pytest.raises(TaskError) as error:
        FunctionAdapter().check(function, task)
    text = str(error.value).replace(f"{__name__}.", "test_arguments.")
    assert says in text
    assert text.endswith("; or give --input, a function that makes the input from a task")
    assert "\n" not in text


def test_what_input_made_is_given_whatever_the_annotation_says() -> None:
    problem = Problem("2+2?")
    assert given_to(typed(Problem), problem) is problem
    assert given_to(typed(str), problem) is problem
    with pytest.raises(TaskError, match=r"the result of --input has the keys id; agent\(task: str\) takes a text"):
        given_to(typed(str), MadeInput(id=1))


@pytest.mark.parametrize(
    ("thing", "takes"),
    [(lambda: None, False), (lambda x: x, True), (lambda **k: k, True), (max, False), (print, True), (Bot(), True)],
)
def test_whether_a_function_takes_a_task(thing: Any, takes: bool) -> None:
    assert takes_task(thing) is takes
