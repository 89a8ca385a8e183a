"""`Hook`: what a user may run around a rollout. Names and arguments follow Agent Lightning's hooks."""

from collections.abc import Sequence
from typing import Any, Protocol

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.runner.adapters.agent_tracer import AgentTracer
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.store.base import LightningStore


class HookRunner(Protocol):
    """What a hook can read of the runner that calls it."""

    @property
    def store(self) -> LightningStore:
        """The store that the attempt is in."""
        ...

    @property
    def source(self) -> AgentSource:
        """Where each attempt's agent comes from, and its adapter."""
        ...

    @property
    def config(self) -> Any:
        """The runner's `RunnerConfig`."""
        ...


class Hook:
    """Override what is needed. A hook that raises is logged, and changes nothing.

    One hook object serves all attempts of its process, many at once.
    """

    async def on_rollout_start(self, *, agent: Any, runner: HookRunner, rollout: AttemptedRollout) -> None:
        """First of all, once the attempt's agent is made and its task can be given to it."""

    async def on_trace_start(
        self, *, agent: Any, runner: HookRunner, tracer: AgentTracer, rollout: AttemptedRollout
    ) -> None:
        """Right before the agent runs, inside the attempt."""

    async def on_trace_end(
        self, *, agent: Any, runner: HookRunner, tracer: AgentTracer, rollout: AttemptedRollout
    ) -> None:
        """Right after the agent ran or failed, inside the attempt: a reward emitted here counts.

        Not called for an attempt that timed out or was cancelled: its agent may still run.
        """

    async def on_rollout_end(
        self, *, agent: Any, runner: HookRunner, rollout: AttemptedRollout, spans: Sequence[Span]
    ) -> None:
        """Last of all, whatever became of it: the attempt is marked, and `spans` is all that is stored of it."""
