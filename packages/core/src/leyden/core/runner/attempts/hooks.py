"""`Hook`: what a user may run around a rollout. Names and arguments follow Agent Lightning's hooks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.runner.adapters.agent_tracer import AgentTracer

if TYPE_CHECKING:
    from leyden.core.runner.runner import Runner


class Hook:
    """Override what is needed. A hook that raises is logged, and changes nothing.

    One hook object serves all attempts of its process, many at once.
    """

    async def on_rollout_start(self, *, agent: Any, runner: "Runner", rollout: AttemptedRollout) -> None:
        """First of all, once the attempt's agent is made and its task can be given to it."""

    async def on_trace_start(
        self, *, agent: Any, runner: "Runner", tracer: AgentTracer, rollout: AttemptedRollout
    ) -> None:
        """Right before the agent runs, inside the attempt."""

    async def on_trace_end(
        self, *, agent: Any, runner: "Runner", tracer: AgentTracer, rollout: AttemptedRollout
    ) -> None:
        """Right after the agent ran or failed, inside the attempt: a reward emitted here counts.

        Not called for an attempt that timed out or was cancelled: its agent may still run.
        """

    async def on_rollout_end(
        self, *, agent: Any, runner: "Runner", rollout: AttemptedRollout, spans: Sequence[Span]
    ) -> None:
        """Last of all, whatever became of it: the attempt is marked, and `spans` is all that is stored of it."""
