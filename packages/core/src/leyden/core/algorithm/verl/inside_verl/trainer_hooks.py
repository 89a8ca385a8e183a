"""What VERL's trainers tell the run: what a batch holds, when weights change, and what a step learns from.

Each is put before a trainer of VERL's as a base, and calls that for all there is to do. Imports nothing of VERL.

Invariant: nothing is drawn while a replica's weights change, and what is drawn then is recorded with their version.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from leyden.core.algorithm.verl.inside_verl.rollout_manager import RolloutCollection

_Proxy: Any = wrapt.ObjectProxy


class SeenBatches(_Proxy):
    """VERL's replay buffer, or one of the user's; `see` is shown each batch before VERL learns from it."""

    def __init__(self, buffer: Any, see: Callable[[Any], None]) -> None:
        proxy: Any = super()
        proxy.__init__(buffer)
        self._self_see = see

    def sample(self, *args: Any, **named: Any) -> Any:
        """Return what VERL's returns: a batch, and numbers about it."""
        batch, numbers = self.__wrapped__.sample(*args, **named)
        self._self_see(batch)
        return batch, numbers


class ToldSync:
    """Says what each batch holds, and when VERL's queue is lost.

    What else happens in a step follows from when its rollouts are asked for.
    """

    global_steps: int
    agent_loop_manager: "RolloutCollection"
    replay_buffer: Any

    def fit(self, agent_loop_manager: "RolloutCollection") -> None:
        """Train."""
        self.replay_buffer = SeenBatches(self.replay_buffer, self._see)
        verl: Any = super()
        with agent_loop_manager.queue_watched():
            verl.fit(agent_loop_manager)

    def _see(self, batch: Any) -> None:
        self.agent_loop_manager.sampled(self.global_steps, batch.partition_id, batch.tags)


class ToldTrainer(ToldSync):
    """Says which prompts a step learns from; version n are the weights that n updates made."""

    def fit(self, agent_loop_manager: "RolloutCollection") -> None:
        """Train; the weights that were loaded are served."""
        agent_loop_manager.begin(self.global_steps)
        verl: Any = super()
        verl.fit(agent_loop_manager)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Sample and learn."""
        verl: Any = super()
        batch = verl.step(metrics, timing_raw)
        self.agent_loop_manager.taken(self.global_steps, batch.keys)
        return batch


class ToldColocated(ToldTrainer):
    """Replicas on the GPUs that train: they stand from when the batch is whole until they have its weights."""

    def on_sample_end(self) -> None:
        """Let the replicas sleep, once nothing is drawn."""
        self.agent_loop_manager.pause(self.global_steps)
        verl: Any = super()
        verl.on_sample_end()

    def on_step_end(self) -> None:
        """Wake the replicas with new weights."""
        verl: Any = super()
        verl.on_step_end()
        self.agent_loop_manager.serve(self.global_steps)


class ToldSeparate(ToldTrainer):
    """Replicas on GPUs of their own, which stand while they are given weights; those that train may lend a hand."""

    _is_updating = False

    def on_step_end(self) -> None:
        """Give the replicas new weights, while nothing is drawn."""
        self._is_updating = True
        self.agent_loop_manager.pause(self.global_steps)
        verl: Any = super()
        verl.on_step_end()
        self._is_updating = False
        self.agent_loop_manager.serve(self.global_steps)

    def add_replicas_to_balancer(self) -> None:
        """Let the replicas on the GPUs that train draw, too."""
        verl: Any = super()
        verl.add_replicas_to_balancer()
        self._say_who_draws()

    def remove_replicas_from_balancer(self) -> None:
        """Let those draw no more: VERL turns them off next."""
        verl: Any = super()
        verl.remove_replicas_from_balancer()
        self._say_who_draws()

    def _say_who_draws(self) -> None:
        # Before `fit` nobody draws; in an update all is said at its end.
        if hasattr(self, "agent_loop_manager") and not self._is_updating:
            self.agent_loop_manager.serve_as_before()
