"""`LitAgentRunner`: runs an agent on the rollouts of a store that other programs fill."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from leyden.core.agent_lightning.replaced import WithReplaced, lookup, refuse
from leyden.core.agent_lightning.session import CHECK_SECONDS, Session, agents
from leyden.core.agent_lightning.tracer import OtelTracer
from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import QUEUED, AttemptedRollout, Rollout, RolloutMode
from leyden.core.errors import UsageError
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.store.base import LightningStore

T = TypeVar("T")


class StopEvent(Protocol):
    """An event of `asyncio`, `threading` or `multiprocessing`."""

    def is_set(self) -> bool:
        """Return whether the runner should stop."""
        ...


class LitAgentRunner(WithReplaced, Generic[T]):
    """Runs an agent in this process: `iter` on the queue of a store, `step` on one task.

    `tracer` is an `OtelTracer` or `AgentOpsTracer`, which changes nothing. The original's other options are refused:
    a store notifies the runner of work, and the runner sends its own heartbeats.
    """

    def __init__(self, tracer: OtelTracer | None = None, **options: Any) -> None:
        check_tracer(tracer)
        if options:
            refuse(f"LitAgentRunner({next(iter(options))}=)", "stores notify runners, which send their own heartbeats")
        self.tracer = tracer or OtelTracer()
        self._context: tuple[Any, LightningStore, tuple[Hook, ...]] | None = None

    @contextmanager
    def run_context(
        self,
        *,
        agent: Any,
        store: LightningStore,
        hooks: Sequence[Hook] | None = None,
        worker_id: int | None = None,
    ) -> "Generator[LitAgentRunner[T]]":
        """Context manager: agent and store of `iter` and `step`. A `worker_id` is refused: the store names workers."""
        if worker_id is not None:
            refuse("worker_id=", "leave it out: Leyden names the workers of a store")
        self._context = agent, store, tuple(hooks or ())
        try:
            yield self
        finally:
            self._context = None

    async def iter(self, *, event: StopEvent | None = None) -> None:
        """Run queued rollouts, one after the other, until `event` is set or the caller cancels."""
        session, store = self._session({})
        async with _running(session, store) as check:
            while event is None or not event.is_set():
                await check()
                await asyncio.sleep(CHECK_SECONDS)

    async def step(
        self,
        input: T,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run the agent on one task and return its rollout with the attempt.

        Raises UsageError if rollouts are queued in the store already, and for an `event`, which only `iter` takes.
        """
        if event is not None:
            refuse("step(event=)", "cancel the call, or limit its time with asyncio.timeout")
        session, store = self._session(resources or {})
        if (await store.query_rollouts(status_in=sorted(QUEUED), limit=1)).total:
            raise UsageError("rollouts are queued in the store, and step() would run them first: use iter()")
        async with _running(session, store) as check:
            rollout = await store.enqueue_rollout(input, mode=mode)
            ids = [rollout.rollout_id]
            while not (ended := await store.wait_for_rollouts(rollout_ids=ids, timeout=CHECK_SECONDS)):
                await check()
        assert isinstance(ended[0], AttemptedRollout)
        return ended[0]

    def _session(self, resources: NamedResources) -> tuple[Session, LightningStore]:
        if self._context is None:
            raise UsageError("LitAgentRunner has no agent yet: with runner.run_context(agent=..., store=...)")
        agent, store, hooks = self._context
        return Session(agent=agent, hooks=hooks, resources=resources, isolation="shared"), store


def _running(session: Session, store: LightningStore) -> Any:
    loaded = session.load()
    return agents(session, loaded, LiveProcesses(session.isolation, loaded), store)


def check_tracer(tracer: object) -> None:
    """Raise ReplacedName unless `tracer` is None or one of the tracers that change nothing."""
    if tracer is not None and not isinstance(tracer, OtelTracer):
        refuse(f"tracer={tracer!r}", "leave it out, since every attempt is recorded; adapters record frameworks")


Runner = LitAgentRunner
"""The only runner. The original's base class has the same methods."""

__all__ = ["LitAgentRunner", "Runner"]

__getattr__ = lookup("runner")
