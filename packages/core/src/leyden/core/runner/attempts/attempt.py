"""One attempt, from its claim to its end. Knows nothing of queues, retries or other attempts."""

import asyncio
import logging
import secrets
import time
from typing import Any, Protocol

import msgspec

from leyden.core.data import semconv
from leyden.core.data.failure import ERROR, NOT_STORED, Failure
from leyden.core.data.identity import mint
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import AttemptedRollout, AttemptStatus, ClaimedRollout
from leyden.core.errors import IllegalMove, LeydenError, NotFound, StoreError
from leyden.core.runner.adapters.builtin import ROLLOUT
from leyden.core.runner.attempts.agent_run import AgentRun, Resources
from leyden.core.runner.attempts.hooks import HookRunner
from leyden.core.runner.attempts.loop_watch import LoopWatch
from leyden.core.runner.attempts.own_failures import log_own_failure, own_failure
from leyden.core.runner.attempts.record import is_refusal, not_stored, store_notes
from leyden.core.runner.attempts.resource_cache import KnownResources
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.isolation.forked_run import ForkedRun
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.wire import unsupported_clients

logger = logging.getLogger(__name__)

API_KEY = "leyden"
"""What the agent's client sends; the token in the URL is what counts."""
EARLY_SECONDS, EARLY_SHARE = 1.0, 0.05
"""By how much the runner is ahead of the store's own clock in calling a timeout, so that the spans are stored first."""
MARK_PAUSES = (0.2, 1.0)
"""Seconds between the tries to mark an attempt where the store answers with an error of its own."""
NO_TOKEN = (
    "the store's server answers claims without attempts' tokens, and this runner has no signing key to make them: "
    "serve the store with store_app(attempt_token=...), as a run does"
)
KILLED_SECONDS = 1.0
"""How long a killed process may take to be gone."""


class AttemptRunner(HookRunner, Protocol):
    """What an attempt needs of the runner that has claimed it."""

    @property
    def config(self) -> RunnerConfig:
        """How the runner works."""
        ...

    @property
    def loaded(self) -> LoadedAgent:
        """The agent, and what its user gives with it."""
        ...

    @property
    def resources(self) -> KnownResources:
        """What rollouts run with."""
        ...

    @property
    def loop_watch(self) -> LoopWatch | None:
        """How long agents have blocked the event loop, where they run on this one."""
        ...

    @property
    def forks(self) -> bool:
        """Whether each attempt runs in a process of its own."""
        ...

    def forked_run(self, rollout: AttemptedRollout, attempt: OpenAttempt, resources: Resources) -> ForkedRun:
        """Return a run of the agent in a process of its own."""
        ...

    def process_lost(self, rollout: AttemptedRollout, failure: Failure) -> None:
        """Keep an attempt marked whose process has died, should a span of it come late."""
        ...

    async def flush(self) -> None:
        """Store the spans that have not been sent yet."""
        ...

    def refused(self, attempt_id: str) -> tuple[int, str] | None:
        """How many spans of an attempt were not stored, and why."""
        ...


class AttemptRun:
    """Runs one claimed attempt. Whatever the agent does, and whatever fails in Leyden, `run` marks the attempt.

    A failure of Leyden itself is the attempt's failure, of kind `leyden`. `run` raises only where the store takes no
    mark at all; it will then find the attempt unresponsive.
    """

    def __init__(self, runner: AttemptRunner, rollout: AttemptedRollout) -> None:
        self.rollout = rollout
        self._runner, self._store, self._config = runner, runner.store, runner.config
        attempt = rollout.attempt
        self._attempt = OpenAttempt(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            token=self._token(),
            gateway_url=self._config.gateway_url,
            trace_id=secrets.token_hex(16),
            mode=rollout.mode,
            routes=self._config.routes,
            extra={ROLLOUT: rollout},
        )
        self._run = self._agent_run()
        self._given_up = asyncio.Event()
        self._refused: list[Failure] = []
        """Why spans of the runner's own could not be stored."""
        self._dropped: tuple[int, str] | None = None
        """How many spans of frameworks were not stored, and why."""
        self._blocked_before = 0.0 if runner.loop_watch is None else runner.loop_watch.seconds
        """For how long agents had blocked the event loop when this attempt was claimed."""
        self._marked = False
        """Whether the attempt is marked as ended, or the store has ended it."""
        self._work: asyncio.Task[None] | None = None

    @property
    def agent_is_done(self) -> bool:
        """Whether only storing and marking is left."""
        return self._work is not None and self._work.done()

    async def run(self) -> None:
        """Run the agent, store what it left, mark the attempt. Cancelled, it stops the agent and marks nothing."""
        try:
            await self._run_to_end()
        except Exception as error:  # broad: whatever it is, it is Leyden's own and must be in the attempt's record
            log_own_failure(self.rollout.rollout_id, error)
            if not self._marked:
                self._run.failure = own_failure("the runner failed", error)
                await self._mark_ended()

    async def _run_to_end(self) -> None:
        if not await self._mark("running"):  # a blocked event loop came to it late: the store has given it up
            self._marked = True
            return
        if not self._attempt.token:
            raise LeydenError(NO_TOKEN)
        limit = self.rollout.config.timeout_seconds
        early = min(EARLY_SECONDS, EARLY_SHARE * limit) if limit else 0.0
        self._work = asyncio.create_task(self._run.run(), name=f"leyden {self._attempt.attempt_id}")
        given_up = asyncio.create_task(self._given_up.wait())
        try:
            timeout = limit - early if limit else None
            await asyncio.wait({self._work, given_up}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end_agent(self._config.cancel_seconds)
            raise
        finally:
            given_up.cancel()
        if not self.agent_is_done and not self._given_up.is_set():
            await self.abandon(self._timeout(), patience=early / 2)
        self._look_at_work()
        await self._finish()

    async def abandon(self, failure: Failure, *, patience: float | None = None) -> None:
        """Stop the agent, which gets `patience` seconds to end, and let `run` mark the attempt with `failure`."""
        self._run.give_up(failure)
        seconds = self._config.cancel_seconds
        await self._end_agent(seconds if patience is None else min(patience, seconds))
        self._given_up.set()

    def _timeout(self) -> Failure:
        what = f"no {self._run.stage}"
        if self._work is None:
            what = "the agent did not begin"
        elif self.agent_is_done and not self._run.stopping:  # what it left waited for the event loop
            what = "what the agent returned could not be stored"
        within = f"within {self.rollout.config.timeout_seconds} s"
        message = f"{what} {within}{self._run.lost_time()}{self._blocked()}"
        return Failure(kind="timeout", type="TimeoutError", message=message)

    def _blocked(self) -> str:
        """That agents blocked the event loop for much of this attempt's time, as the rest of a sentence; or nothing."""
        watch = self._runner.loop_watch
        return "" if watch is None else watch.since(self._blocked_before, self.rollout.config.timeout_seconds)

    def _look_at_work(self) -> None:
        """Note what the task that ran the agent did not note itself: without a failure it would pass for a success."""
        run = self._run
        if self._work is None or not self._work.done():
            return
        if self._work.cancelled():
            run.failure = run.failure or own_failure("the attempt's task ended early", asyncio.CancelledError())
        elif (error := self._work.exception()) is not None:
            unsaid = own_failure("how the agent ended cannot be recorded", error)
            self._refused.append(unsaid)
            run.failure = run.failure or unsaid

    async def _end_agent(self, seconds: float) -> None:
        """Refuse the agent's model calls from here on and cancel it; a thread, or a task that will not end, is left.

        A process of its own is killed instead.
        """
        self._attempt.closed.set()
        self._run.stopping = True
        if self._work is None or self._work.done():
            return
        self._work.cancel()
        _, stuck = await asyncio.wait({self._work}, timeout=seconds)
        if stuck and self._run.kill():
            await asyncio.wait({self._work}, timeout=KILLED_SECONDS)
        elif stuck:
            logger.warning("the agent of rollout %s ignores its cancellation", self.rollout.rollout_id)

    def _token(self) -> str:
        """The attempt's token; empty where the claim brought none and this runner cannot make it."""
        if isinstance(self.rollout, ClaimedRollout):
            return self.rollout.token
        key = self._config.key
        return "" if key is None else mint(key, self.rollout.rollout_id, self.rollout.attempt.attempt_id)

    def _agent_run(self) -> AgentRun | ForkedRun:
        if self._runner.forks:
            return self._runner.forked_run(self.rollout, self._attempt, self._resources)
        return AgentRun(
            self.rollout, self._attempt, loaded=self._runner.loaded, resources=self._resources, runner=self._runner
        )

    async def _resources(self) -> NamedResources:
        """The rollout's resources; each LLM is this attempt's own endpoint at the gateway."""
        attempt = self._attempt
        ours: dict[str, Any] = {
            "endpoint": f"{attempt.gateway_url}/a/{attempt.token}/v1",
            "api_key": API_KEY,
            "attempt": (attempt.rollout_id, attempt.attempt_id),
        }
        return {
            name: msgspec.structs.replace(resource, **ours) if isinstance(resource, LLM) else resource
            for name, resource in (await self._runner.resources.of(self.rollout)).items()
        }

    # --- The record

    async def _finish(self) -> None:
        """Store every span before the attempt is marked, so that what waits for its end finds them."""
        await self._store_spans()
        silence = await self._silence() if self._run.failure is None else []
        await self._mark_ended({"silence": silence} if silence else {})
        if self._run.failure is not None and self._run.failure.kind == "worker":
            self._runner.process_lost(self.rollout, self._run.failure)
        unsupported_clients.tell(silence)
        await self._end_run()

    async def _store_spans(self) -> None:
        """Store what the frameworks and the runner recorded; what the runner cannot store is the attempt's failure.

        A framework's span that is not stored is noted alone: calls, result and reward are whole without it.
        """
        try:
            await self._runner.flush()
            self._dropped = self._runner.refused(self._attempt.attempt_id)
            self._refused += await store_notes(self._store, self._attempt.notes)
        except Exception as error:  # broad: the attempt is marked all the same, unless the store is gone
            self._refused.append(own_failure("the attempt's spans cannot be stored", error))
        for refused in self._refused:
            logger.error("rollout %s: %s", self.rollout.rollout_id, refused.message)
            self._run.failure = self._run.failure or refused

    async def _silence(self) -> list[str]:
        """What may be why the agent made no model call, unless this process has said it; empty where it made one."""
        reasons = self._run.made_no_call
        if not reasons:
            return []
        try:
            spans = await self._store.query_spans(self._attempt.rollout_id, self._attempt.attempt_id)
        except StoreError as error:
            logger.info("the calls of rollout %s cannot be looked at: %s", self._attempt.rollout_id, error)
            return []
        return [] if any(semconv.CALL_ID in span.attributes for span in spans.items) else reasons

    async def _mark_ended(self, notes: dict[str, Any] | None = None) -> None:
        """Mark the attempt with what became of it; raises what the store raises when it takes no mark."""
        for pause in (*MARK_PAUSES, None):
            failure = self._run.failure
            status = "succeeded" if failure is None else _STATUSES.get(failure.kind, "failed")
            try:
                await self._mark(status, notes)
                break
            except Exception as error:  # broad: whatever the mark cannot hold must not keep the attempt open
                if pause is None:
                    raise
                logger.warning("attempt of rollout %s cannot be marked yet: %r", self.rollout.rollout_id, error)
                if is_refusal(error):
                    self._run.failure, notes = own_failure("the attempt cannot be marked", error), None
                else:
                    await asyncio.sleep(pause)
        self._marked = True

    async def _mark(self, status: AttemptStatus, notes: dict[str, Any] | None = None) -> bool:
        """Mark the attempt; returns whether it was still open for that."""
        fields: dict[str, Any] = {"last_heartbeat_time": time.time()} if status == "running" else {}
        if self._run.failure is not None:
            notes = {ERROR: self._run.failure.metadata()}
        if lost := not_stored(self._refused, self._dropped):
            notes = {**(notes or {}), NOT_STORED: lost}
        if notes:
            fields["metadata"] = {**self.rollout.attempt.metadata, **notes}
        ids = self._attempt.rollout_id, self._attempt.attempt_id
        try:
            await self._store.update_attempt(*ids, status=status, **fields)
        except (IllegalMove, NotFound) as error:  # the store gave the attempt up meanwhile
            logger.info("attempt %s of rollout %s is not marked %s: %s", ids[1], ids[0], status, error)
            await self.explain_timeout()
            return False
        return True

    async def explain_timeout(self) -> None:
        """Note in an attempt that the store's own clock has ended why it was late, where agents blocked the loop."""
        if not self._blocked():
            return
        rollout_id, attempt_id = self._attempt.rollout_id, self._attempt.attempt_id
        for found in await self._store.query_attempts(rollout_id):
            if found.attempt_id == attempt_id and found.status == "timeout" and ERROR not in found.metadata:
                metadata = {**found.metadata, ERROR: self._timeout().metadata()}
                await self._store.update_attempt(rollout_id, attempt_id, metadata=metadata)

    async def _end_run(self) -> None:
        """Have the hooks called that run last of all, and what ran the agent end."""
        spans = None
        if self._config.hooks:
            try:
                spans = (await self._store.query_spans(self._attempt.rollout_id, self._attempt.attempt_id)).items
            except StoreError as error:
                logger.warning("rollout %s: on_rollout_end is not called: %s", self.rollout.rollout_id, error)
        await self._run.end(spans)


_STATUSES: dict[str, AttemptStatus] = {"timeout": "timeout", "worker": "unresponsive"}
"""What an attempt is marked as, by the kind of its failure; any other kind has failed."""
