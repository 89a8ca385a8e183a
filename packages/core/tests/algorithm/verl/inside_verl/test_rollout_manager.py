"""VERL's side of a run's rollouts, without VERL's trainers: what ends the run, and what does not.

Long: it imports VERL.
"""

import asyncio
import time
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from leyden.core.algorithm.verl.driver.launch import TOKEN, URL

pytestmark = [pytest.mark.skipif(find_spec("verl") is None, reason="VERL is not installed")]

PROMPT = {"uid": "task", "global_steps": 1, "extra_info": {"row": 0, "held_out": None}}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[str]]]:
    """A collection of a queue that is closed, and the reasons that it sends to the run."""
    from leyden.core.algorithm.verl import verl_config
    from leyden.core.algorithm.verl.inside_verl import rollout_manager, verl_queue

    async def closed(*_: object) -> None:
        raise AssertionError("TransferQueueController has not been initialized yet")

    async def fails(failed: Any) -> None:
        said.append(failed.why)

    def plain(section: object) -> dict[str, Any]:
        del section
        return settings

    said: list[str] = []
    settings: dict[str, Any] = {"credit": "uniform", "advantage": "grpo"}
    monkeypatch.setenv(URL, "http://127.0.0.1:9")
    monkeypatch.setenv(TOKEN, "t")
    monkeypatch.setattr(verl_config, "plain", plain)
    monkeypatch.setattr(verl_queue, "put_status", closed)
    monkeypatch.setattr(verl_queue, "queue_parts", lambda: set[str]())
    config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(
            rollout=SimpleNamespace(temperature=1.0, n=4),
            model={},
            actor=SimpleNamespace(strategy="megatron"),
            ref=SimpleNamespace(strategy="megatron"),
        ),
        algorithm={"leyden": settings},
        data=SimpleNamespace(max_prompt_length=8, max_response_length=8),
        trainer=SimpleNamespace(v1=SimpleNamespace(trainer_mode="colocate_async")),
    )
    made: Any = rollout_manager.RolloutManager(config, SimpleNamespace(_load_balancer=None))
    monkeypatch.setattr(made, "_client", SimpleNamespace(failed=fails))
    yield made, said
    loop: asyncio.AbstractEventLoop = made._loop
    loop.call_soon_threadsafe(loop.stop)
    while loop.is_running():
        time.sleep(0.01)
    loop.close()


def test_a_queue_that_takes_no_rollouts_ends_the_run(failing: tuple[Any, list[str]]) -> None:
    made, said = failing
    with made.watch_queue():
        asyncio.run(made._prompt(dict(PROMPT), "train"))
    assert said == [
        "rollouts could not be passed to VERL: AssertionError: TransferQueueController has not been initialized yet"
    ]


def test_rollouts_of_a_training_that_has_failed_do_not_hide_why(failing: tuple[Any, list[str]]) -> None:
    made, said = failing
    with pytest.raises(RuntimeError, match="an actor died"), made.watch_queue():
        raise RuntimeError("an actor died")
    asyncio.run(made._prompt(dict(PROMPT), "train"))
    assert not said


def test_a_queue_whose_loss_verl_or_a_rollout_meets_first_is_still_the_reason(
    failing: tuple[Any, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leyden.core.algorithm.verl.inside_verl import verl_queue

    made, said = failing
    live = {"TransferQueueController", "TransferQueueStorage_0"}
    monkeypatch.setattr(verl_queue, "queue_parts", lambda: set(live))
    with pytest.raises(RuntimeError, match="an actor died"), made.watch_queue():
        live.remove("TransferQueueController")
        asyncio.run(made._prompt(dict(PROMPT), "train"))
        raise RuntimeError("an actor died")
    assert said == ["VERL's queue is lost because TransferQueueController died"] * 2
