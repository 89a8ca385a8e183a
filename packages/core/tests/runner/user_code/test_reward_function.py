import asyncio
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from leyden.core.errors import RewardError
from leyden.core.runner.user_code.reward import as_reward, check_reward_function, score
from leyden.core.testing import factories
from leyden.core.tracing.context import current_attempt, is_outside, open_attempt

ATTEMPT = factories.attempt()


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.25), 0.25),
        (np.int64(2), 2.0),
        (Fraction(1, 4), 0.25),
        (Decimal("0.25"), 0.25),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
    ],
)
def test_numbers_are_rewards(returned: Any, value: float) -> None:
    assert as_reward(returned).value == value
    assert as_reward(returned).dimensions == {}


def test_a_reward_may_come_with_feedback() -> None:
    assert as_reward((0.5, "the date is missing")).feedback == "the date is missing"
    found = as_reward(({"right": 1.0, "short": 0.5}, "too long"), {"right": 1.0, "short": 2.0})
    assert (found.value, dict(found.dimensions), found.feedback) == (2.0, {"right": 1.0, "short": 0.5}, "too long")
    assert as_reward((1, "key sk-proj-" + "a1B2" * 12)).feedback.count("a1B2") == 0


@pytest.mark.parametrize("returned", [("0.5", "why"), (None, "why"), (0.5, 0.5), (0.5, "why", "more"), ((0.5, "a"), 1)])
def test_a_pair_of_anything_else_is_no_reward(returned: Any) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        as_reward(returned)


@pytest.mark.parametrize(
    "returned",
    [
        None,
        "1",
        float("nan"),
        float("inf"),
        10**400,
        [1.0],
        {},
        {"a": "1"},
        {"a": None},
        {1: 1.0},
        {"a": float("nan")},
        1j,
        np.array([0.5]),
        torch.tensor([]),
        Decimal("sNaN"),
    ],
)
def test_anything_else_is_not(returned: Any) -> None:
    with pytest.raises(ValueError, match=r"finite number|must be text"):
        as_reward(returned)


@pytest.mark.parametrize(
    "returned",
    [1e308, -1e308, 2e15, -2e15, 10**16, Decimal("1e300"), np.float64(1e20), {"a": 1e308}, {"a": 8e14, "b": 8e14}],
)
def test_a_reward_that_no_batch_could_hold_is_refused(returned: Any) -> None:
    with pytest.raises(ValueError, match=r"not a number between -1e\+15 and 1e\+15"):
        as_reward(returned)


def test_a_weight_makes_no_larger_reward() -> None:
    with pytest.raises(ValueError, match=r"weighted sum is 1e\+16, not a number between"):
        as_reward({"a": 10.0}, {"a": 1e15})
    assert as_reward({"a": 1e15, "b": -1e15}).value == 0
    assert as_reward(-1e15).value == -1e15


async def test_the_task_of_a_reward_that_is_too_large_is_named() -> None:
    def huge(task: Any, result: Any) -> float:
        return 1e308

    with pytest.raises(RewardError, match=r"reward .*huge returned 1e\+308, not a number .*'question': '2\+2\?'"):
        await score(huge, {"question": "2+2?"}, "4")


def test_dimensions_are_summed_by_their_weights() -> None:
    dimensions = {"correct": 1.0, "format": 0.5}
    assert as_reward(dimensions).value == 1.5
    weighted = as_reward(dimensions, {"correct": 0.9, "format": 0.1})
    assert weighted.value == pytest.approx(0.95)
    assert weighted.dimensions == dimensions


@pytest.mark.parametrize("returned", [{"correct": 1.0}, {"correct": 1.0, "fromat": 1.0}, 1.0])
def test_a_name_without_its_weight_is_an_error(returned: Any) -> None:
    with pytest.raises(ValueError, match=r"weights (are given )?for correct, format"):
        as_reward(returned, {"correct": 0.9, "format": 0.1})


async def test_a_sync_reward_runs_in_a_thread_outside_the_attempt() -> None:
    def reward(task: Any, result: Any) -> float:
        assert threading.current_thread() is not threading.main_thread()
        assert current_attempt() is None
        assert is_outside()
        return task + result

    with open_attempt(ATTEMPT):
        assert (await score(reward, 1, 2)).value == 3.0
        assert current_attempt() is ATTEMPT


async def test_an_async_reward_runs_on_the_loop_outside_the_attempt() -> None:
    loop = asyncio.get_running_loop()

    async def reward(task: Any, result: Any) -> float:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop
        assert current_attempt() is None
        return 0.5

    class Callable:
        async def __call__(self, task: Any, result: Any) -> float:
            return await reward(task, result)

    with open_attempt(ATTEMPT):
        assert (await score(reward, 1, 2)).value == 0.5
        assert (await score(Callable(), 1, 2)).value == 0.5


class Unreadable(dict[str, float]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class WithoutText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def cancels(task: Any, result: Any) -> float:
    raise asyncio.CancelledError


def interrupts(task: Any, result: Any) -> float:
    raise KeyboardInterrupt


def unreadable(task: Any, result: Any) -> Any:
    return Unreadable(a=1.0)


def without_text(task: Any, result: Any) -> Any:
    return WithoutText()


def partly_nan(task: Any, result: Any) -> dict[str, float]:
    return {"good": 1.0, "bad": float("nan")}


def unnamed(task: Any, result: Any) -> dict[int, float]:
    return {1: 1.0}


def too_large(task: Any, result: Any) -> dict[str, float]:
    return {"a": 9e14, "b": 9e14}


async def waits_for_what_is_cancelled(task: Any, result: Any) -> float:
    judge = asyncio.ensure_future(asyncio.sleep(10))
    judge.cancel()
    await judge
    return 1.0


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (cancels, "cancels raised CancelledError"),
        (interrupts, "interrupts raised KeyboardInterrupt"),
        (waits_for_what_is_cancelled, "waits_for_what_is_cancelled raised CancelledError"),
        (unreadable, "which cannot be read: RuntimeError: no items"),
        (without_text, r"returned <.*WithoutText> .*, not a finite number"),
        (unnamed, "a dict with the key 1: the name of a dimension must be text"),
        (partly_nan, r"a dict with 'bad': nan \(float\), not a finite"),
        (too_large, r"dimensions whose weighted sum is 1.8e\+15, not a number between"),
    ],
)
async def test_whatever_goes_wrong_in_a_reward_is_the_rewards_error(function: Any, says: str) -> None:
    with pytest.raises(RewardError, match=says):
        await score(function, {"id": "t1"}, None)


async def test_a_reward_that_is_waited_for_can_be_cancelled() -> None:
    async def never(task: Any, result: Any) -> float:
        await asyncio.sleep(60)
        return 1.0

    scoring = asyncio.create_task(score(never, 1, None))
    await asyncio.sleep(0.01)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring


async def test_what_a_reward_raises_names_task_and_place() -> None:
    def wrong_key(task: Any, result: Any) -> float:
        return task["answr"]

    with pytest.raises(RewardError) as error:
        await score(wrong_key, {"answer": 1, "question": "x" * 500}, None)
    message = str(error.value)
    assert "wrong_key raised KeyError: 'answr'" in message
    assert "test_reward_function.py, line" in message
    assert "{'answer': 1" in message
    assert len(message) < 600
    assert "\n" not in message


class Panic(BaseException):
    """As libraries in Rust raise it, and what test libraries skip with."""


@pytest.mark.parametrize(
    "kind", [StopIteration, SystemExit, RuntimeError, KeyboardInterrupt, asyncio.CancelledError, Panic]
)
async def test_a_reward_that_raises_oddly_is_a_reward_error(kind: type[BaseException]) -> None:
    def reward(task: Any, result: Any) -> float:
        raise kind("no")

    with pytest.raises(RewardError, match="raised"):
        await asyncio.wait_for(score(reward, 1, 2), 20)


@pytest.mark.parametrize(
    ("returned", "shown"), [(None, "None"), ("good", "'good' (str)"), (float("nan"), "nan"), (10**400, "1000")]
)
async def test_what_a_reward_returns_is_named(returned: Any, shown: str) -> None:
    with pytest.raises(RewardError) as error:
        await score(lambda task, result: returned, {"q": 1}, None)
    assert f"returned {shown}" in str(error.value)
    assert "for task {'q': 1}" in str(error.value)


def one(task: Any) -> float:
    return 1.0


def two(task: Any, result: Any, strict: bool = True) -> float:
    return 1.0


def three(task: Any, result: Any, spans: Any) -> float:
    return 1.0


@pytest.mark.parametrize("function", ["score", None, one, three])
def test_a_reward_that_cannot_be_called_is_found_at_once(function: Any) -> None:
    with pytest.raises(RewardError, match=r"score\(task, result\)"):
        check_reward_function(function)


@pytest.mark.parametrize("function", [two, max])
def test_a_reward_that_can_be_called_passes(function: Any) -> None:
    check_reward_function(function)
