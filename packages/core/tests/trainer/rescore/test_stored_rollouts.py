from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.plain.recorded_object import Restored
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.data.span import Span
from leyden.core.errors import UsageError
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.factories import span
from leyden.core.testing.running import finished, run_one, running
from leyden.core.trainer.rescore.stored_rollouts import (
    NO_RESULT,
    OLDER_VERSION,
    check_which,
    stored_result,
    stored_rollouts,
)
from leyden.core.trajectory.select import Selector


def result_span(**attributes: Any) -> list[Span]:
    names = {name: getattr(semconv, name.upper()) for name in attributes}
    return [span(semconv.RESULT, {names[name]: value for name, value in attributes.items()})]


class AnswerBox:
    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize(
    "result",
    [
        "text",
        "",
        "x" * 5000,
        7,
        None,
        2.5,
        True,
        [1, "a"],
        {"answer": 4, "parts": [{"n": (1, 2)}]},
        {"text": "y" * 3000},
    ],
)
async def test_plain_results_are_stored_whole(result: Any) -> None:
    async def agent(task: Any) -> Any:
        return result

    _, spans = await run_one(agent)
    form, why = stored_result(spans)
    assert (form is not None, why) == (True, "")
    assert Restored(form or "").value == result


async def test_of_an_object_without_declared_fields_the_class_is_stored() -> None:
    async def agent(task: Any) -> Any:
        return AnswerBox("secret")

    _, spans = await run_one(agent)
    form, _ = stored_result(spans)
    assert form is not None
    assert "AnswerBox" in form
    assert "secret" not in form


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        ([], NO_RESULT),
        (result_span(error_type="ValueError"), NO_RESULT),
        (result_span(result="4"), OLDER_VERSION),
        (
            result_span(result="[...]", result_type="list", result_not_kept="it contains itself"),
            "the result was a list, of which the store has its text only: it contains itself",
        ),
        (
            result_span(
                result="4", result_type="int", result_form="4", reduced=[f"attributes.{semconv.RESULT_FORM}: shortened"]
            ),
            "the result, a int, was shortened in the store",
        ),
        (result_span(result="4", result_type="int"), "the result was a int, and its record is incomplete"),
    ],
)
def test_why_a_result_is_not_given_to_a_reward(spans: list[Span], why: str) -> None:
    assert stored_result(spans) == (None, why)


async def test_finished_rollouts_are_read_in_whole_groups() -> None:
    async def agent(task: Any) -> Any:
        return task

    store = MemoryStore()
    modes: dict[str, Any] = {"train-v0-b0-0-0": "train", "train-v0-b0-0-1": "train", "train-v0-b0-1-0": "train"}
    modes |= {"val-set-before-v0-agent-0": "val"}
    requests = [EnqueueRollout(rollout_id=name, input=name, mode=mode) for name, mode in modes.items()]
    await store.enqueue_many_rollouts(requests)
    async with running(store, agent, reward=lambda task, result: 1.0):  # pyright: ignore[reportUnknownLambdaType]
        await finished(store, list(modes))
    await store.enqueue_rollout("waits", mode="train")

    async def read(which: Any, limit: int | None = None) -> list[tuple[str, str]]:
        return [(one.rollout_id, one.group) async for one in stored_rollouts(store, Selector(), which, limit)]

    train = [("train-v0-b0-0-0", "train-v0-b0-0"), ("train-v0-b0-0-1", "train-v0-b0-0")]
    last, held_out = ("train-v0-b0-1-0", "train-v0-b0-1"), ("val-set-before-v0-agent-0", "")
    assert await read("train") == [*train, last]
    assert await read("train", 1) == train, "the rest of the last group is read too"
    assert await read("held-out") == [held_out]
    assert await read("all") == [*train, last, held_out]


def test_another_word_for_the_rollouts_is_refused() -> None:
    with pytest.raises(UsageError, match="must be one of train, held-out, all, not 'val'"):
        check_which("val")
