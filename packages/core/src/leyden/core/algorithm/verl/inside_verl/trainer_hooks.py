"""Trainer hooks: report to the run what a batch holds, when weights change, and what a step learns from.

Each class becomes a base of one of VERL's trainers, before VERL's class, and calls it for all its work. This module
does not import VERL. Invariant: no token is generated while a replica's weights change, and tokens are recorded with
the version of the weights that generated them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from leyden.core.algorithm.verl.inside_verl.rollout_manager import RolloutManager

_Proxy: Any = wrapt.ObjectProxy


class ObservedBatches(_Proxy):
    """VERL's replay buffer, or the user's; calls `on_batch` with each batch before VERL learns from it."""

    def __init__(self, buffer: Any, on_batch: Callable[[Any], None]) -> None:
        proxy: Any = super()
        proxy.__init__(buffer)
        self._self_on_batch = on_batch

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped buffer's result: a batch, and metrics about it."""
        batch, metrics = self.__wrapped__.sample(*args, **kwargs)
        self._self_on_batch(batch)
        return batch, metrics


class ReportingSync:
    """Reports what each batch holds, and when VERL's queue is lost.

    The run derives everything else about a step from the time when its rollouts are requested.
    """

    global_steps: int
    agent_loop_manager: "RolloutManager"
    replay_buffer: Any

    def fit(self, agent_loop_manager: "RolloutManager") -> None:
        """Train, and report every batch to the run."""
        self.replay_buffer = ObservedBatches(self.replay_buffer, self._on_batch)
        verl: Any = super()
        with agent_loop_manager.watch_queue():
            verl.fit(agent_loop_manager)

    def _on_batch(self, batch: Any) -> None:
        self.agent_loop_manager.sampled(self.global_steps, batch.partition_id, batch.tags)


class ReportingTrainer(ReportingSync):
    """Reports which prompts a step learns from; version n is the weights after n updates."""

    def fit(self, agent_loop_manager: "RolloutManager") -> None:
        """Train, and first report that the loaded weights are served."""
        agent_loop_manager.begin(self.global_steps)
        verl: Any = super()
        verl.fit(agent_loop_manager)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Sample a batch, learn from it, and return it."""
        verl: Any = super()
        batch = verl.step(metrics, timing_raw)
        self.agent_loop_manager.taken(self.global_steps, batch.keys)
        return batch


class ReportingColocated(ReportingTrainer):
    """Trainer with replicas on the training GPUs, which stop from the complete batch until they have new weights."""

    def on_sample_end(self) -> None:
        """Put the replicas to sleep, after generation has stopped."""
        self.agent_loop_manager.pause(self.global_steps)
        verl: Any = super()
        verl.on_sample_end()

    def on_step_end(self) -> None:
        """Wake the replicas with new weights."""
        verl: Any = super()
        verl.on_step_end()
        self.agent_loop_manager.serve(self.global_steps)


class ReportingSeparate(ReportingTrainer):
    """Trainer with replicas on separate GPUs, which stop while they get new weights; training GPUs may also serve."""

    _is_updating = False

    def on_step_end(self) -> None:
        """Give the replicas new weights, while no token is generated."""
        self._is_updating = True
        self.agent_loop_manager.pause(self.global_steps)
        verl: Any = super()
        verl.on_step_end()
        self._is_updating = False
        self.agent_loop_manager.serve(self.global_steps)

    def add_replicas_to_balancer(self) -> None:
        """Let the replicas on the training GPUs serve calls as well."""
        verl: Any = super()
        verl.add_replicas_to_balancer()
        self._report_replicas()

    def remove_replicas_from_balancer(self) -> None:
        """Stop routing calls to those replicas, which VERL turns off next."""
        verl: Any = super()
        verl.remove_replicas_from_balancer()
        self._report_replicas()

    def _report_replicas(self) -> None:
        # Before `fit` no replica serves; during an update, the replicas are reported at its end.
        if hasattr(self, "agent_loop_manager") and not self._is_updating:
            self.agent_loop_manager.serve_same_version()
