import asyncio
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.errors import RewardError
from leyden.core.testing import factories
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import Caller, OpenAttempt, current_caller, open_attempt, set_caller
from leyden.core.tracing.emit import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_observation,
    emit_reward,
    operation,
)


@pytest.fixture
def opened() -> Iterator[OpenAttempt]:
    attempt = factories.attempt()
    with open_attempt(attempt):
        yield attempt


def test_each_emitter_leaves_a_span_in_the_attempt(opened: OpenAttempt) -> None:
    set_caller(Caller(agent="solver", trace_id="cd" * 16, span_id="12" * 8))
    emit_reward(1)
    emit_reward({"correct": 0.5, "format": 0.25})
    emit_observation(role="environment", content="door opens")
    emit_message("hello")
    emit_object({"a": [1, {2}]})
    emit_exception(ValueError("no"))
    assert {span.parent_id for span in opened.notes} == {"12" * 8}
    assert {span.trace_id for span in opened.notes} == {"cd" * 16}
    assert len({span.span_id for span in opened.notes}) == 6
    found = [(span.name, span.attributes) for span in opened.notes[:5]]
    assert found == [
        (semconv.REWARD, {semconv.REWARD_VALUE: 1.0}),
        (
            semconv.REWARD,
            {
                semconv.REWARD_VALUE: 0.75,
                f"{semconv.REWARD_DIMENSION}correct": 0.5,
                f"{semconv.REWARD_DIMENSION}format": 0.25,
            },
        ),
        (semconv.OBSERVATION, {semconv.ROLE: "environment", semconv.CONTENT: "door opens"}),
        (semconv.MESSAGE, {semconv.CONTENT: "hello"}),
        (semconv.OBJECT, {semconv.CONTENT: '{"a": [1, [2]]}'}),
    ]
    error = opened.notes[5]
    assert error.attributes["exception.type"] == "ValueError"
    assert (error.status.code, error.status.description) == ("error", "no")


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, None, "1", {}, {"a": None}, {"a": math.nan}, 1e308, {"a": -2e15}, {"a": 8e14, "b": 8e14}],
)
def test_a_reward_that_is_no_finite_number_is_refused(value: Any, opened: OpenAttempt) -> None:
    with pytest.raises(RewardError):
        emit_reward(value)
    assert not opened.notes


def test_the_primary_dimension_is_the_reward(opened: OpenAttempt) -> None:
    emit_reward({"correct": 0.5, "format": 0.25}, primary_key="format")
    assert opened.notes[0].attributes == {
        semconv.REWARD_VALUE: 0.25,
        f"{semconv.REWARD_DIMENSION}correct": 0.5,
        f"{semconv.REWARD_DIMENSION}format": 0.25,
    }


@pytest.mark.parametrize(
    ("value", "named"), [({"correct": 1.0, "format": 0.0}, "correct, format"), (1.0, "none"), ({"b": 1.0}, "b")]
)
@pytest.mark.parametrize("key", ["a", "", 3])
def test_a_primary_key_that_is_no_dimension_is_refused(value: Any, named: str, key: Any, opened: OpenAttempt) -> None:
    with pytest.raises(RewardError, match=f"primary_key is {key!r}; the reward's dimensions are: {named}"):
        emit_reward(value, primary_key=key)
    assert not opened.notes


@pytest.mark.parametrize("value", ["v", None, 3, ValueError, {"error": "v"}])
def test_what_is_no_exception_is_refused(value: Any, opened: OpenAttempt) -> None:
    with pytest.raises(TypeError, match=r"emit_exception takes an exception, .* use emit_message for a text"):
        emit_exception(value)
    assert not opened.notes


async def test_emitters_work_in_tasks_threads_and_executors(opened: OpenAttempt) -> None:
    async def say(text: str) -> None:
        emit_message(text)

    context_propagation.install()
    try:
        await asyncio.gather(say("task"), asyncio.to_thread(emit_message, "to_thread"))
        thread = threading.Thread(target=emit_message, args=("thread",))
        thread.start()
        thread.join()
    finally:
        context_propagation.uninstall()
    assert sorted(str(span.attributes[semconv.CONTENT]) for span in opened.notes) == ["task", "thread", "to_thread"]


def test_outside_an_attempt_emitters_do_nothing_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="leyden.emit"):
        for _ in range(3):
            emit_observation(role="x", content="y")
        with operation("quiet"):
            pass
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2


async def test_operations_nest_and_pass_errors_on(opened: OpenAttempt) -> None:
    @operation("inner")
    async def inner(value: int) -> int:
        emit_message("deep")
        return value + 1

    @operation("plain")
    def plain() -> None:
        raise KeyError("x")

    with operation("outer"):
        assert await inner(1) == 2
    with pytest.raises(KeyError):
        plain()
    assert current_caller() is None
    spans = {span.name: span for span in opened.notes}
    deep, nested, outer = spans[semconv.MESSAGE], spans["inner"], spans["outer"]
    assert (deep.parent_id, nested.parent_id, outer.parent_id) == (nested.span_id, outer.span_id, None)
    assert outer.start_time <= nested.start_time <= (nested.end_time or 0) <= (outer.end_time or 0)
    assert (spans["plain"].status.code, spans["plain"].attributes[semconv.ERROR_TYPE]) == ("error", "KeyError")


async def test_one_operation_decorates_concurrent_calls(opened: OpenAttempt) -> None:
    @operation("step")
    async def step(text: str) -> None:
        await asyncio.sleep(0)
        emit_message(text)
        await asyncio.sleep(0)

    await asyncio.gather(*(step(str(n)) for n in range(8)))
    steps = {span.span_id for span in opened.notes if span.name == "step"}
    assert {span.parent_id for span in opened.notes if span.name == semconv.MESSAGE} == steps
    assert len(steps) == 8


def test_emitters_take_further_attributes_and_keep_their_own(opened: OpenAttempt) -> None:
    emit_annotation({"tag": "fast"})
    emit_reward(1, attributes={"judge": "a", semconv.REWARD_VALUE: 9.0})
    emit_message("hello", attributes={"lang": "en"})
    emit_object([1], attributes={"kind": "list"})
    emit_exception(ValueError("no"), attributes={"step": 3})
    found = [span.attributes for span in opened.notes]
    assert found[:4] == [
        {"tag": "fast"},
        {"judge": "a", semconv.REWARD_VALUE: 1.0},
        {"lang": "en", semconv.CONTENT: "hello"},
        {"kind": "list", semconv.CONTENT: "[1]"},
    ]
    assert (opened.notes[0].name, found[4]["step"]) == (semconv.ANNOTATION, 3)


def test_an_operation_takes_attributes_before_and_inside(opened: OpenAttempt) -> None:
    with operation("search", {"index": "web"}) as one:
        one.set_attributes({"hits": 3})
        with operation("rank") as inner:
            inner.set_attributes({"kept": 1})
    assert [(span.name, span.attributes) for span in opened.notes] == [
        ("rank", {"kept": 1}),
        ("search", {"index": "web", "hits": 3}),
    ]
    with pytest.raises(RuntimeError, match="inside the block"):
        one.set_attributes({"late": True})


def test_an_operation_outside_an_attempt_takes_attributes_and_records_nothing() -> None:
    with operation("search") as one:
        one.set_attributes({"hits": 3})
