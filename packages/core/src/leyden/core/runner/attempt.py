"""One attempt, from its claim to its end. Knows nothing of queues, retries or other attempts."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import AttemptedRollout, AttemptStatus
from leyden.core.data.span import Span
from leyden.core.errors import IllegalMove, NotFound, RewardError, StoreError, UsageError
from leyden.core.runner.agent_tracer import AgentTracer
from leyden.core.runner.annotations import Failure, emitted_value, exception_span, result_span, reward_span, text_of
from leyden.core.runner.builtin_adapters import ROLLOUT
from leyden.core.runner.hooks import Hook
from leyden.core.runner.input_function import make_input
from leyden.core.runner.reward import Reward, as_reward, score
from leyden.core.tracing import out_of_reach
from leyden.core.tracing.context import OpenAttempt, open_attempt

if TYPE_CHECKING:
    from leyden.core.runner.runner import Runner

logger = logging.getLogger(__name__)

API_KEY = "leyden"
"""What the agent's client sends; the token in the URL is what counts."""
EARLY_SECONDS, EARLY_SHARE = 1.0, 0.05
"""By how much the runner is ahead of the store's own clock in calling a timeout, so that the spans are stored first."""


class AttemptRun:
    """Runs one claimed attempt. Whatever the agent does, `run` marks the attempt and returns."""

    def __init__(self, runner: "Runner", rollout: AttemptedRollout) -> None:
        self.rollout = rollout
        self._runner, self._store, self._config = runner, runner.store, runner.config
        self._adapter = runner.source.adapter
        attempt = rollout.attempt
        self._attempt = OpenAttempt(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            token=mint(self._config.key, rollout.rollout_id, attempt.attempt_id),
            gateway_url=self._config.gateway_url,
            trace_id=secrets.token_hex(16),
            mode=rollout.mode,
            routes=self._config.routes,
            extra={ROLLOUT: rollout},
        )
        self._agent: Any = None
        self._began = time.time()
        self._awaited = "result"
        """What the attempt is at: waiting for the agent's `result`, or for its `reward`."""
        self._cancelling = False
        self._given_up = asyncio.Event()
        self._failure: Failure | None = None
        self._work: asyncio.Task[Any] | None = None

    @property
    def agent_is_done(self) -> bool:
        """Whether only storing and marking is left."""
        return self._work is not None and self._work.done()

    async def run(self) -> None:
        """Run the agent, store what it left, mark the attempt. Cancelled, it stops the agent and marks nothing."""
        await self._mark("running")
        limit = self.rollout.config.timeout_seconds
        early = min(EARLY_SECONDS, EARLY_SHARE * limit) if limit else 0.0
        self._work = asyncio.create_task(self._try(), name=f"leyden {self._attempt.attempt_id}")
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
            failure = Failure(kind="timeout", type="TimeoutError", message=f"no {self._awaited} within {limit} s")
            await self.abandon(failure, patience=early / 2)
        await self._finish()

    async def abandon(self, failure: Failure, *, patience: float | None = None) -> None:
        """Stop the agent, which gets `patience` seconds to end, and let `run` mark the attempt with `failure`."""
        self._failure = failure
        if self._awaited == "result":
            self._note(result_span(self._attempt, None, self._began, failure))
        seconds = self._config.cancel_seconds
        await self._end_agent(seconds if patience is None else min(patience, seconds))
        self._given_up.set()

    async def _end_agent(self, seconds: float) -> None:
        """Refuse the agent's model calls from here on and cancel it; a thread, or a task that will not end, is left."""
        self._attempt.closed.set()
        self._cancelling = True
        if self._work is None or self._work.done():
            return
        self._work.cancel()
        _, stuck = await asyncio.wait({self._work}, timeout=seconds)
        if stuck:
            logger.warning("the agent of rollout %s ignores its cancellation", self.rollout.rollout_id)

    # --- The agent and its reward

    async def _try(self) -> None:
        """Run the agent and score what it returned; what goes wrong becomes the attempt's failure."""
        try:
            result = await self._run_agent()
            self._note(result_span(self._attempt, result, self._began, None))
            self._awaited = "reward"
            reward = await self._reward(result)
        except BaseException as error:  # sys.exit() in a task would end the worker's loop
            if self._cancelling:
                return
            self._failure = _failure(error)
            self._note(exception_span(self._attempt, error))
            if self._awaited == "result":
                self._note(result_span(self._attempt, None, self._began, self._failure))
            if not isinstance(error, UsageError):
                logger.info("rollout %s failed: %s: %s", self.rollout.rollout_id, type(error).__name__, text_of(error))
        else:
            if reward is not None and not self._cancelling:
                self._note(reward_span(self._attempt, reward))

    async def _run_agent(self) -> Any:
        resources = await self._resources()
        task, rollout, tracer = await self._input(), self.rollout, AgentTracer()
        with open_attempt(self._attempt):
            agent = self._agent = self._runner.source.fresh()
            self._adapter.check(agent, task)
            given: dict[str, Any] = {"agent": agent, "runner": self._runner, "rollout": rollout}
            await self._call_hooks(lambda hook: hook.on_rollout_start(**given))
            await self._call_hooks(lambda hook: hook.on_trace_start(**given, tracer=tracer))
            self._began = time.time()
            try:
                return await self._adapter.run(agent, task, resources)
            finally:
                if not self._cancelling:
                    await self._call_hooks(lambda hook: hook.on_trace_end(**given, tracer=tracer))

    async def _input(self) -> Any:
        """What stands for the task before the agent; the reward function gets the row itself."""
        task = self.rollout.input
        return task if self._config.input is None else await make_input(self._config.input, task)

    async def _reward(self, result: Any) -> Reward | None:
        weights = self._config.reward_weights
        if self._config.reward is not None:
            return await score(self._config.reward, self.rollout.input, result, weights)
        returned = self._adapter.returned_reward(result)
        if returned is None:
            return self._weighted_emission(weights) if weights else None
        try:
            return as_reward(returned, weights)
        except ValueError as error:
            name = type(self._agent).__name__
            raise RewardError(f"{name} returned {error}: a rollout returns its reward, or None") from None

    def _weighted_emission(self, weights: Mapping[str, float]) -> Reward | None:
        """The last reward that the agent emitted, weighted; it is then the attempt's in that one's place."""
        emitted = next((span for span in reversed(self._attempt.notes) if span.name == semconv.REWARD), None)
        if emitted is None:
            return None
        try:
            return as_reward(emitted_value(emitted), weights)
        except ValueError as error:
            raise RewardError(f"{type(self._agent).__name__} emitted {error}") from None

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

    def _note(self, span: Span) -> None:
        self._attempt.notes.append(span)

    async def _finish(self) -> None:
        """Store every span before the attempt is marked, so that whoever waits for it finds them."""
        await self._runner.flush()
        await self._store.add_many_spans(list(self._attempt.notes))
        failure = self._failure
        silence = await self._silence() if failure is None else []
        status = "succeeded" if failure is None else "timeout" if failure.kind == "timeout" else "failed"
        await self._mark(status, {"silence": silence} if silence else {})
        out_of_reach.tell(silence)
        if self._config.hooks:
            spans = await self._store.query_spans(self._attempt.rollout_id, self._attempt.attempt_id)
            given: dict[str, Any] = {"agent": self._agent, "runner": self._runner, "rollout": self.rollout}
            await self._call_hooks(lambda hook: hook.on_rollout_end(**given, spans=spans.items))

    async def _silence(self) -> list[str]:
        """What may be why the agent made no model call, unless this process has said it; empty where it made one."""
        reasons = out_of_reach.untold(self._attempt)
        if not reasons:
            return []
        try:
            spans = await self._store.query_spans(self._attempt.rollout_id, self._attempt.attempt_id)
        except StoreError as error:
            logger.info("the calls of rollout %s cannot be looked at: %s", self._attempt.rollout_id, error)
            return []
        return [] if any(semconv.CALL_ID in span.attributes for span in spans.items) else reasons

    async def _mark(self, status: AttemptStatus, notes: dict[str, Any] | None = None) -> None:
        fields: dict[str, Any] = {"last_heartbeat_time": time.time()} if status == "running" else {}
        if self._failure is not None:
            notes = {"error": self._failure.metadata()}
        if notes:
            fields["metadata"] = {**self.rollout.attempt.metadata, **notes}
        ids = self._attempt.rollout_id, self._attempt.attempt_id
        try:
            await self._store.update_attempt(*ids, status=status, **fields)
        except (IllegalMove, NotFound) as error:  # the store gave the attempt up meanwhile
            logger.info("attempt %s of rollout %s is not marked %s: %s", ids[1], ids[0], status, error)

    async def _call_hooks(self, call: Callable[[Hook], Awaitable[None]]) -> None:
        for hook in self._config.hooks:
            try:
                await call(hook)
            except Exception:
                logger.exception("hook %s failed", type(hook).__name__)


def _failure(error: BaseException) -> Failure:
    kind = "reward" if isinstance(error, RewardError) else "input" if isinstance(error, UsageError) else "agent"
    return Failure(kind=kind, type=type(error).__qualname__, message=text_of(error))
