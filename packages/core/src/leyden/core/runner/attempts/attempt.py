"""`AttemptRun`: one attempt, from its claim to its end."""

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
from leyden.core.runner.attempts.resource_cache import ResourceCache
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.isolation.forked_run import ForkedRun
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.store.outage import through_outage
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.wire import unsupported_clients

logger = logging.getLogger(__name__)

API_KEY = "leyden"
"""API key that the agent's client sends. The gateway identifies the attempt by the token in the URL instead."""
EARLY_SECONDS, EARLY_SHARE = 1.0, 0.05
"""Margin by which the runner's timeout comes before the store's own, in seconds and as a share of the limit.

The smaller of the two applies. The margin leaves time to store the spans first.
"""
NO_TOKEN = (
    "the store's server sends no attempt tokens with claimed rollouts, and this runner has no signing key to make "
    "them: serve the store with store_app(attempt_token=...), as a run does"
)
KILLED_SECONDS = 1.0
"""How long a killed process may take to end."""


class AttemptRunner(HookRunner, Protocol):
    """What an attempt needs from the runner that claimed it."""

    @property
    def config(self) -> RunnerConfig:
        """Settings of the runner."""
        ...

    @property
    def loaded(self) -> LoadedAgent:
        """The agent, with the reward and input functions and hooks that the user gives."""
        ...

    @property
    def resource_cache(self) -> ResourceCache:
        """Cache of the resources that rollouts run with."""
        ...

    @property
    def loop_watch(self) -> LoopWatch | None:
        """Measures how long agents have blocked the event loop. None where agents run in other processes."""
        ...

    @property
    def forks(self) -> bool:
        """Whether each attempt runs in a process of its own."""
        ...

    def forked_run(self, rollout: AttemptedRollout, attempt: OpenAttempt, resources: Resources) -> ForkedRun:
        """Return a run of the agent in a process of its own."""
        ...

    def process_lost(self, rollout: AttemptedRollout, failure: Failure) -> None:
        """Keep an attempt marked as lost after its process has died, although a span may still arrive late."""
        ...

    async def flush(self) -> None:
        """Store the spans that have not been sent yet."""
        ...

    def refused(self, attempt_id: str) -> tuple[int, str] | None:
        """Return how many spans of an attempt were not stored, and the reason. None: all were stored."""
        ...


class AttemptRun:
    """Run of one claimed attempt. `run` marks the attempt whatever the agent does and whatever fails in Leyden.

    A failure of Leyden itself becomes the attempt's failure, of kind `leyden`. `run` raises only where the store
    accepts no status at all. The store then finds the attempt unresponsive.
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
        """Reasons why the runner's own spans could not be stored."""
        self._dropped: tuple[int, str] | None = None
        """How many spans of frameworks were not stored, and the reason."""
        self._blocked_before = 0.0 if runner.loop_watch is None else runner.loop_watch.seconds
        """Seconds for which agents had blocked the event loop before this attempt was claimed."""
        self._marked = False
        """Whether the attempt is marked as ended, by this runner or by the store."""
        self._work: asyncio.Task[None] | None = None

    @property
    def agent_is_done(self) -> bool:
        """Whether the agent has ended, so that only storing spans and marking the attempt remain."""
        return self._work is not None and self._work.done()

    async def run(self) -> None:
        """Run the agent, store its spans and mark the attempt.

        When it is cancelled, it stops the agent and marks nothing.
        """
        try:
            await self._run_to_end()
        except Exception as error:  # broad: any error here is Leyden's own and must be in the attempt's record
            log_own_failure(self.rollout.rollout_id, error)
            if not self._marked:
                self._run.failure = own_failure("the runner failed", error)
                await self._mark_ended()

    async def _run_to_end(self) -> None:
        if not await self._mark("running"):  # too late on a blocked event loop: the store has given the attempt up
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
        self._check_work()
        await self._finish()

    async def abandon(self, failure: Failure, *, patience: float | None = None) -> None:
        """Stop the agent and let `run` mark the attempt with `failure`.

        The agent gets `patience` seconds to end, at most the configured `cancel_seconds`.
        """
        self._run.give_up(failure)
        seconds = self._config.cancel_seconds
        await self._end_agent(seconds if patience is None else min(patience, seconds))
        self._given_up.set()

    def _timeout(self) -> Failure:
        what = f"no {self._run.stage}"
        if self._work is None:
            what = "the agent did not start"
        elif self.agent_is_done and not self._run.stopping:  # the result waited for the event loop
            what = "the agent's result could not be stored"
        within = f"within {self.rollout.config.timeout_seconds} s"
        message = f"{what} {within}{self._run.lost_time()}{self._blocked()}"
        return Failure(kind="timeout", type="TimeoutError", message=message)

    def _blocked(self) -> str:
        """Return the end of a message: agents blocked the event loop for much of this attempt's time.

        Empty where they did not.
        """
        loop_watch = self._runner.loop_watch
        return "" if loop_watch is None else loop_watch.since(self._blocked_before, self.rollout.config.timeout_seconds)

    def _check_work(self) -> None:
        """Record how the agent's task ended if the task did not.

        Without a failure the attempt would count as a success.
        """
        run = self._run
        if self._work is None or not self._work.done():
            return
        if self._work.cancelled():
            run.failure = run.failure or own_failure("the attempt's task ended early", asyncio.CancelledError())
        elif (error := self._work.exception()) is not None:
            unrecorded = own_failure("the end of the agent cannot be recorded", error)
            self._refused.append(unrecorded)
            run.failure = run.failure or unrecorded

    async def _end_agent(self, seconds: float) -> None:
        """Refuse the agent's model calls from now on and cancel the agent.

        A thread cannot be cancelled and goes on, as does a task that ignores its cancellation. A forked process that
        does not end within `seconds` is killed.
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
            logger.warning("the agent of rollout %s was cancelled and is still running", self.rollout.rollout_id)

    def _token(self) -> str:
        """Return the attempt's token. Empty where the claim contained none and this runner has no key to make it."""
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
        """Return the rollout's resources. The endpoint of each LLM is this attempt's own URL at the gateway."""
        attempt = self._attempt
        own_fields: dict[str, Any] = {
            "endpoint": f"{attempt.gateway_url}/a/{attempt.token}/v1",
            "api_key": API_KEY,
            "attempt": (attempt.rollout_id, attempt.attempt_id),
        }
        resources = await through_outage(lambda: self._runner.resource_cache.of(self.rollout))
        return {
            name: msgspec.structs.replace(resource, **own_fields) if isinstance(resource, LLM) else resource
            for name, resource in resources.items()
        }

    # --- The record

    async def _finish(self) -> None:
        """Store all spans before the attempt is marked.

        A client that waits for the attempt's end can then read them.
        """
        await self._store_spans()
        silence = await self._silence() if self._run.failure is None else []
        await self._mark_ended({"silence": silence} if silence else {})
        if self._run.failure is not None and self._run.failure.kind == "worker":
            self._runner.process_lost(self.rollout, self._run.failure)
        unsupported_clients.warn(silence)
        await self._end_run()

    async def _store_spans(self) -> None:
        """Store the spans of frameworks and of the runner.

        A span of the runner that cannot be stored fails the attempt.

        A framework's span that cannot be stored is only noted: calls, result and reward are complete without it.
        """
        try:
            await self._runner.flush()
            self._dropped = self._runner.refused(self._attempt.attempt_id)
            self._refused += await through_outage(lambda: store_notes(self._store, self._attempt.notes))
        except Exception as error:  # broad: the attempt is still marked, unless the store is gone
            self._refused.append(own_failure("the attempt's spans cannot be stored", error))
        for refused in self._refused:
            logger.error("rollout %s: %s", self.rollout.rollout_id, refused.message)
            self._run.failure = self._run.failure or refused

    async def _silence(self) -> list[str]:
        """Return possible reasons why the agent made no model call.

        Empty where it made one, or where this process has already logged the reasons.
        """
        reasons = self._run.made_no_call
        if not reasons:
            return []
        try:
            spans = await self._store.query_spans(self._attempt.rollout_id, self._attempt.attempt_id)
        except StoreError as error:
            logger.info("the calls of rollout %s cannot be read: %s", self._attempt.rollout_id, error)
            return []
        return [] if any(semconv.CALL_ID in span.attributes for span in spans.items) else reasons

    async def _mark_ended(self, notes: dict[str, Any] | None = None) -> None:
        """Mark the attempt with its final status. Raises the store's error when the store accepts no status."""
        try:
            await self._mark(self._last_status(), notes)
        except Exception as error:  # broad: a value that the store refuses must not keep the attempt open
            if not is_refusal(error):
                raise
            logger.warning("the status of the attempt of rollout %s is refused: %r", self.rollout.rollout_id, error)
            self._run.failure = own_failure("the status of the attempt cannot be stored", error)
            await self._mark(self._last_status())
        self._marked = True

    def _last_status(self) -> AttemptStatus:
        failure = self._run.failure
        return "succeeded" if failure is None else _STATUSES.get(failure.kind, "failed")

    async def _mark(self, status: AttemptStatus, notes: dict[str, Any] | None = None) -> bool:
        """Mark the attempt, if necessary after an outage. Returns False when the store had already ended it."""
        fields: dict[str, Any] = {"last_heartbeat_time": time.time()} if status == "running" else {}
        if self._run.failure is not None:
            notes = {ERROR: self._run.failure.metadata()}
        if lost := not_stored(self._refused, self._dropped):
            notes = {**(notes or {}), NOT_STORED: lost}
        if notes:
            fields["metadata"] = {**self.rollout.attempt.metadata, **notes}
        ids = self._attempt.rollout_id, self._attempt.attempt_id
        try:
            await through_outage(lambda: self._store.update_attempt(*ids, status=status, **fields))
        except (IllegalMove, NotFound) as error:  # the store has ended the attempt meanwhile
            logger.info("attempt %s of rollout %s cannot become %s: %s", ids[1], ids[0], status, error)
            await self.explain_timeout()
            return False
        return True

    async def explain_timeout(self) -> None:
        """Record why an attempt was late when the store's own clock has ended it.

        Does nothing unless agents blocked the event loop.
        """
        if not self._blocked():
            return
        rollout_id, attempt_id = self._attempt.rollout_id, self._attempt.attempt_id
        for found in await self._store.query_attempts(rollout_id):
            if found.attempt_id == attempt_id and found.status == "timeout" and ERROR not in found.metadata:
                metadata = {**found.metadata, ERROR: self._timeout().metadata()}
                await self._store.update_attempt(rollout_id, attempt_id, metadata=metadata)

    async def _end_run(self) -> None:
        """End the agent's run, which calls the `on_rollout_end` hooks."""
        spans = None
        if self._config.hooks:
            try:
                spans = (await self._store.query_spans(self._attempt.rollout_id, self._attempt.attempt_id)).items
            except StoreError as error:
                logger.warning("rollout %s: on_rollout_end is not called: %s", self.rollout.rollout_id, error)
        await self._run.end(spans)


_STATUSES: dict[str, AttemptStatus] = {"timeout": "timeout", "worker": "unresponsive"}
"""Final status of an attempt by the kind of its failure. Any other kind gives `failed`."""
