"""What VERL's trainers tell the run, here beside a trainer that notes what it does."""

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from leyden.core.algorithm.verl.inside_verl.trainer_hooks import ReportingColocated, ReportingSeparate, ReportingSync

if TYPE_CHECKING:  # it imports VERL, for seconds, in every process that collects tests
    from leyden.core.algorithm.verl.inside_verl.rollout_manager import RolloutManager

FIRST = ["add", "begin 0", "watch"]
SAMPLED = "sampled 1 train [{'seq_len': 3}]"


class Collection:
    """Stands for the rollouts' side: notes what it is told."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def __getattr__(self, name: str) -> Any:
        def note(*said: object) -> None:
            self._done.append(" ".join([name, *map(str, said)]))

        return note

    @contextmanager
    def watch_queue(self) -> Generator[None]:
        self._done.append("watch")
        yield
        self._done.append("watch no more")


class Buffer:
    """Stands for VERL's replay buffer."""

    poll_interval = 2.0

    def sample(self, *, partition_id: str) -> tuple[Any, dict[str, float]]:
        return SimpleNamespace(partition_id=partition_id, keys=["a_0_0"], tags=[{"seq_len": 3}]), {"evicted": 0.0}


class Verl:
    """Stands for a trainer of VERL's."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.global_steps = 0
        self.replay_buffer: Any = Buffer()
        self.add_replicas_to_balancer()

    def fit(self, agent_loop_manager: Any) -> None:
        self.agent_loop_manager = agent_loop_manager
        self.global_steps = 1
        self.step({}, {})
        self.on_step_end()

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        assert not metrics and not timing_raw
        batch, numbers = self.replay_buffer.sample(partition_id="train")
        assert (numbers, self.replay_buffer.poll_interval) == ({"evicted": 0.0}, 2.0)
        self.on_sample_end()
        self.done.append("learn")
        return batch

    def on_sample_end(self) -> None:
        self.done.append("sleep")

    def on_step_end(self) -> None:
        self.add_replicas_to_balancer()
        self.done.append("update")

    def add_replicas_to_balancer(self) -> None:
        self.done.append("add")

    def remove_replicas_from_balancer(self) -> None:
        self.done.append("remove")


@pytest.mark.parametrize(
    ("told", "done"),
    [
        (ReportingSync, ["add", "watch", SAMPLED, "sleep", "learn", "add", "update"]),
        (
            ReportingColocated,
            [*FIRST, SAMPLED, "pause 1", "sleep", "learn", "taken 1 ['a_0_0']", "add", "update", "serve 1"],
        ),
        (
            ReportingSeparate,
            [*FIRST, SAMPLED, "sleep", "learn", "taken 1 ['a_0_0']", "pause 1", "add", "update", "serve 1"],
        ),
    ],
)
def test_nothing_is_drawn_while_weights_change(told: type, done: list[str]) -> None:
    trainer: Any = type("Told", (told, Verl), {})()
    trainer.fit(cast("RolloutManager", Collection(trainer.done)))
    assert trainer.done == [*done, "watch no more"]


def test_replicas_that_come_and_go_between_updates_are_told_of() -> None:
    trainer: Any = type("Told", (ReportingSeparate, Verl), {})()
    trainer.fit(Collection(trainer.done))
    trainer.done.clear()
    trainer.remove_replicas_from_balancer()
    trainer.add_replicas_to_balancer()
    assert trainer.done == ["remove", "serve_same_version", "add", "serve_same_version"]
