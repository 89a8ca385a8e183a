"""`import_agent_lightning`: reads a store of Agent Lightning 0.3 into a Leyden store.

It can be interrupted and run again: what is there already is not written twice. Rollouts get a queue of their own, so
that no worker of the store claims those that had not ended.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.rollout import FINISHED_ROLLOUT, Attempt, Rollout, RolloutConfig
from leyden.core.errors import CallRefused, IllegalMove, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.trainer.imports.agent_lightning_server import (
    AgentLightningServer,
    SourceAttempt,
    SourceRollout,
    check_url,
)
from leyden.core.trainer.imports.agent_lightning_spans import convert_resources, convert_spans

QUEUE = "agent-lightning"
"""Queue of the imported rollouts."""
ORIGIN = "agent_lightning"
"""Key in the metadata of an imported rollout or attempt: its ids and times in Agent Lightning."""
WHOLE = "whole"
"""Key below `ORIGIN`: whether the rollout had ended there, and everything of it was imported."""
SPANS_AT_ONCE = 500

Progress = Callable[[int, int], None]


class Imported(msgspec.Struct, kw_only=True):
    """What an import has written, and what it could not represent."""

    source: str
    rollouts: int = 0
    attempts: int = 0
    spans: int = 0
    rewards: int = 0
    calls: int = 0
    """Spans of model calls whose messages can be read."""
    resources: int = 0
    there_already: int = 0
    """Rollouts that an earlier import has written completely."""
    unfinished: int = 0
    """Rollouts that have not ended in Agent Lightning."""
    changed: dict[str, int] = {}
    """What was left out or is not as it was, with counts."""


class _Clock:
    """Clock of the store that is written: the time at which something happened in Agent Lightning."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def import_agent_lightning(source: str, to: str, progress: Progress) -> Imported:
    """Read the store behind the server at `source` into the store at the URI `to`, and return the counts.

    Raises UsageError for a source that is no store server, or a store that cannot keep anything. Raises LeydenError if
    the server no longer answers; what was read until then is stored.
    """
    url = check_url(source)
    if to.startswith("memory:"):
        raise UsageError(
            "--to memory:// ends with this command: give a store that stays, such as sqlite:///imported.db"
        )
    async with AgentLightningServer(url) as server:
        clock = _Clock()
        store = await open_store(to, clock=clock)
        try:
            work = _Import(server, store, clock)
            if to.startswith("http"):
                work.keeps_times = False
            await work.run(progress)
            return work.result()
        finally:
            await store.close()


class _Import:
    def __init__(self, server: AgentLightningServer, store: LightningStore, clock: _Clock) -> None:
        self._server, self._store, self._clock = server, store, clock
        self._done = Imported(source=server.url)
        self._changed = Counter[str]()
        self.keeps_times = True
        """Whether the store takes times from `clock`; a server has its own."""

    def result(self) -> Imported:
        """Return the counts."""
        return msgspec.structs.replace(self._done, changed={name: n for name, n in self._changed.items() if n})

    async def run(self, progress: Progress) -> None:
        """Import resources, then rollouts."""
        async for given in self._server.resources():
            named = convert_resources(given, self._changed)
            self._changed["earlier versions of resources, which the server no longer has"] += given.version - 1
            existing = await self._store.get_resources_by_id(given.resources_id)
            if existing is None or existing.resources != named:
                self._clock.now = given.update_time
                await self._store.update_resources(given.resources_id, named)
                self._done.resources += 1
        total, read = await self._server.count_rollouts(), 0
        async for rollout in self._server.rollouts():
            try:
                await self._rollout(rollout)
            except CallRefused as error:
                self._changed[f"rollouts that the store refused, the last because {error}"] += 1
            read += 1
            progress(read, max(total, read))
        self._changed["statistics of workers, left out"] += await self._server.count_workers()

    async def _rollout(self, given: SourceRollout) -> None:
        own = await self._store.get_rollout_by_id(given.rollout_id)
        origin = _origin(own)
        if origin is None:
            self._changed["rollouts whose id another rollout of the store has, left out"] += 1
            return
        if origin.get(WHOLE):
            self._done.there_already += 1
            return
        if own is None:
            own = await self._enqueue(given)
            self._done.rollouts += 1
        known: Sequence[Attempt] = (await self._store.query_attempts(given.rollout_id)).items
        index = 0
        async for attempt in self._server.attempts(given.rollout_id):
            await self._attempt(attempt, known[index] if index < len(known) else None)
            index += 1
        await self._finish(given)

    async def _enqueue(self, given: SourceRollout) -> Rollout:
        self._clock.now = given.start_time
        self._changed["rollouts whose times are those of the import"] += not self.keeps_times
        return await self._store.enqueue_rollout(
            given.input,
            mode=given.mode,
            resources_id=given.resources_id or "",
            config=self._config(given.config),
            metadata=_with_origin(given.metadata, start_time=given.start_time),
            rollout_id=given.rollout_id,
            queue=QUEUE,
        )

    def _config(self, given: RolloutConfig) -> RolloutConfig:
        """Return limits that a Leyden store accepts."""
        limits = {name: getattr(given, name) for name in ("timeout_seconds", "unresponsive_seconds")}
        wrong = {name: None for name, seconds in limits.items() if seconds is not None and not seconds > 0}
        self._changed["time limits of rollouts that are not above 0, left out"] += len(wrong)
        return replace(given, **wrong)

    async def _attempt(self, given: SourceAttempt, own: Attempt | None) -> None:
        known = set[str]()
        if own is None:
            self._clock.now = given.start_time
            own = (await self._store.start_attempt(given.rollout_id, worker_id=given.worker_id)).attempt
            self._done.attempts += 1
        else:
            stored = await self._store.query_spans(given.rollout_id, own.attempt_id)
            known = {span.span_id for span in stored}
        self._clock.now = given.last_heartbeat_time or given.end_time or given.start_time
        read = [span async for span in self._server.spans(given.rollout_id, given.attempt_id)]
        spans = await convert_spans(read, own.attempt_id, self._changed)
        new = [span for span in spans if span.span_id not in known]
        for first in range(0, len(new), SPANS_AT_ONCE):
            stored = await self._store.add_many_spans(new[first : first + SPANS_AT_ONCE])
            self._done.spans += len(stored)
            self._done.rewards += sum(span.name == semconv.REWARD for span in stored)
            self._done.calls += sum(semconv.NOT_TRAINED in span.attributes for span in stored)
        await self._end(given, own)

    async def _end(self, given: SourceAttempt, own: Attempt) -> None:
        """Set the status of an attempt after its spans, which would revive it."""
        self._clock.now = given.end_time or given.last_heartbeat_time or given.start_time
        now = await self._store.query_attempts(given.rollout_id)
        own = next(attempt for attempt in now if attempt.attempt_id == own.attempt_id)
        changes: dict[str, Any] = {
            "metadata": _with_origin(
                given.metadata, attempt_id=given.attempt_id, start_time=given.start_time, end_time=given.end_time
            )
        }
        if own.status != given.status:
            changes["status"] = given.status
        if given.last_heartbeat_time is not None:
            changes["last_heartbeat_time"] = given.last_heartbeat_time
        try:
            await self._store.update_attempt(given.rollout_id, own.attempt_id, **changes)
        except IllegalMove:
            self._changed[f"attempts that are {given.status} there and {own.status} here"] += 1
            del changes["status"]
            await self._store.update_attempt(given.rollout_id, own.attempt_id, **changes)

    async def _finish(self, given: SourceRollout) -> None:
        """Set the status of a rollout, which its last attempt may not have given it, and mark it as complete."""
        self._clock.now = given.end_time or self._clock.now
        has_ended = given.status in FINISHED_ROLLOUT
        self._done.unfinished += not has_ended
        own = await self._store.get_rollout_by_id(given.rollout_id)
        assert own is not None  # enqueued before
        times = {"start_time": given.start_time, "end_time": given.end_time}
        changes: dict[str, Any] = {"metadata": _with_origin(given.metadata, **times, **{WHOLE: has_ended})}
        if own.status != given.status:
            changes["status"] = given.status
        try:
            await self._store.update_rollout(given.rollout_id, **changes)
        except IllegalMove:
            self._changed[f"rollouts that are {given.status} there and {own.status} here"] += 1
            del changes["status"]
            await self._store.update_rollout(given.rollout_id, **changes)


def _origin(own: Rollout | None) -> dict[str, Any] | None:
    """Return what an earlier import has noted at a rollout; None if no import wrote it."""
    noted: Any = {} if own is None else own.metadata.get(ORIGIN)
    return cast("dict[str, Any]", noted) if isinstance(noted, dict) else None


def _with_origin(metadata: dict[str, Any] | None, **origin: Any) -> dict[str, Any]:
    return {**(metadata or {}), ORIGIN: {name: value for name, value in origin.items() if value is not None}}
