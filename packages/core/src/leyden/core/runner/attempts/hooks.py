"""`Hook`: user code that runs before and after a rollout. Names and arguments follow Agent Lightning's hooks."""

from collections.abc import Sequence
from typing import Any, Protocol

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.runner.adapters.agent_tracer import AgentTracer
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.store.base import LightningStore


class HookRunner(Protocol):
    """What a hook can read from the runner that calls it."""

    @property
    def store(self) -> LightningStore:
        """The store that contains the attempt."""
        ...

    @property
    def source(self) -> AgentSource:
        """Source of each attempt's agent, with its adapter."""
        ...

    @property
    def config(self) -> Any:
        """The runner's `RunnerConfig`."""
        ...


class Hook:
    """Base class for hooks: override the methods that you need.

    The runner logs an exception of a hook and continues. One hook object serves all attempts of its process
    concurrently.
    """

    async def on_rollout_start(self, *, agent: Any, runner: HookRunner, rollout: AttemptedRollout) -> None:
        """Called before all other hooks, once the agent is made and its task is checked."""

    async def on_trace_start(
        self, *, agent: Any, runner: HookRunner, tracer: AgentTracer, rollout: AttemptedRollout
    ) -> None:
        """Called right before the agent runs, inside the attempt."""

    async def on_trace_end(
        self, *, agent: Any, runner: HookRunner, tracer: AgentTracer, rollout: AttemptedRollout
    ) -> None:
        """Called right after the agent ran or failed, inside the attempt. A reward emitted here counts.

        Not called for an attempt that timed out or was cancelled, because its agent may still run.
        """

    async def on_rollout_end(
        self, *, agent: Any, runner: HookRunner, rollout: AttemptedRollout, spans: Sequence[Span]
    ) -> None:
        """Called last, whatever the outcome. The attempt is marked, and `spans` holds all its stored spans."""
