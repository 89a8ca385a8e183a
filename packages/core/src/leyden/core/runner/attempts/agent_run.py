"""`AgentRun`: runs an attempt's agent in this process and scores its result.

`AttemptRun` handles the rest of the attempt: its claim, its limits and its end in the store. It may be in another
process.
"""

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any, Literal

from leyden.core.data import semconv
from leyden.core.data.failure import Failure, FailureKind
from leyden.core.data.plain.own_methods import short_name
from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.errors import RewardError, UnknownAgent, UsageError
from leyden.core.runner.adapters.agent_tracer import AgentTracer
from leyden.core.runner.attempts.annotations import (
    emitted_value,
    exception_span,
    failed_span,
    result_span,
    reward_span,
    text_of,
)
from leyden.core.runner.attempts.error_text import user_place, user_stack
from leyden.core.runner.attempts.hooks import Hook, HookRunner
from leyden.core.runner.attempts.own_failures import (
    OwnFailure,
    log_own_failure,
    own_failure,
    own_work,
    raised_by_adapter,
)
from leyden.core.runner.user_code.calls import is_ours
from leyden.core.runner.user_code.input_function import make_input
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.runner.user_code.reward import Reward, as_reward, score
from leyden.core.tracing.context import OpenAttempt, open_attempt, process_attempt
from leyden.core.tracing.wire import unsupported_clients

logger = logging.getLogger(__name__)

Stage = Literal["result", "reward"]
Resources = Callable[[], Awaitable[NamedResources]]
"""Returns the resources of the agent. Called once; the call counts toward the attempt's time limit."""


class AgentRun:
    """One run of the agent `loaded` for `rollout`. Appends the spans that it writes to `attempt.notes`.

    `runner` is passed to hooks. `is_alone`: the process runs nothing but this attempt, ever.
    """

    def __init__(
        self,
        rollout: AttemptedRollout,
        attempt: OpenAttempt,
        *,
        loaded: LoadedAgent,
        resources: Resources,
        runner: HookRunner,
        is_alone: bool = False,
    ) -> None:
        self.rollout, self.attempt = rollout, attempt
        self.failure: Failure | None = None
        """Reason of the failure, set when the run has ended without success."""
        self.stage: Stage = "result"
        """What the run waits for now: the agent's result or its reward."""
        self.stopping = False
        """Set by the owner before it cancels `run`. Afterwards the agent's exceptions and results are not recorded."""
        self._loaded, self._runner, self._resources, self._is_alone = loaded, runner, resources, is_alone
        self._adapter = loaded.source.adapter
        self._agent: Any = None
        self._began = time.time()

    @property
    def made_no_call(self) -> list[str]:
        """Possible reasons why this process saw no model call of the agent.

        Empty where it saw one, or where this process has already logged the reasons.
        """
        return unsupported_clients.possible_reasons(self.attempt)

    async def run(self) -> None:
        """Run the agent and score its result. An exception becomes `failure` and is not raised."""
        try:
            result = await self._run_agent()
            self._note(await result_span(self.attempt, result, self._began, self._final_output(result)))
            self.stage = "reward"
            reward = await self._reward(result)
        except BaseException as error:  # an uncaught sys.exit() in a task would end the worker's loop
            if self.stopping:
                return
            await self._fail(error)
        else:
            if reward is not None and not self.stopping:
                self._note(reward_span(self.attempt, reward))

    def lost_time(self) -> str:
        """Return an empty string: no time was lost, because the agent was loaded before the attempt began."""
        return ""

    def give_up(self, failure: Failure) -> None:
        """Record that the run has ended with `failure`. The owner then cancels `run`."""
        self.stopping, self.failure = True, failure
        if self.stage == "result":
            self._note(failed_span(self.attempt, self._began, failure))

    def kill(self) -> bool:
        """Return False: a run in this process can only be cancelled."""
        return False

    async def end(self, spans: list[Span] | None) -> None:
        """Call the `on_rollout_end` hooks with `spans`, all stored spans of the attempt.

        None: the spans could not be read, and the hooks are not called.
        """
        if spans is None:
            return
        given = self._given()
        await self._call_hooks(lambda hook: hook.on_rollout_end(**given, spans=spans))

    async def _fail(self, error: BaseException) -> None:
        failure = await asyncio.to_thread(self._failure_from, error)  # in a thread: may call the exception's methods
        span = await exception_span(self.attempt, error, failure.message)
        if self.stopping:
            return
        self.failure = failure
        self._note(span)
        if self.stage == "result":
            self._note(failed_span(self.attempt, self._began, failure))
        if failure.kind == "leyden":
            log_own_failure(self.rollout.rollout_id, error)
        elif not isinstance(error, UsageError):
            stack = user_stack(str(span.attributes[semconv.STACK_TRACE]))
            logger.info("rollout %s failed: %s%s", self.rollout.rollout_id, failure.text, f"\n{stack}" if stack else "")

    def _failure_from(self, error: BaseException) -> Failure:
        if isinstance(error, OwnFailure):
            return own_failure("", error)
        if raised_by_adapter(error, self._adapter):
            return own_failure(f"adapter {self._adapter.name!r} failed", error)
        kind = _kind_of(error)
        place = user_place(error) if kind == "agent" else ""
        return Failure(kind=kind, type=short_name(error), message=text_of(error), place=place)

    async def _run_agent(self) -> Any:
        with own_work("the rollout's resources cannot be read"):
            resources = await self._resources()
        task, tracer = await self._input(), AgentTracer()
        alone = process_attempt(self.attempt) if self._is_alone else nullcontext()
        with open_attempt(self.attempt), alone:
            self._agent = self._loaded.source.fresh()
            with own_work(f"adapter {self._adapter.name!r} cannot check the task"):
                self._adapter.check(self._agent, task)
            given = self._given()
            await self._call_hooks(lambda hook: hook.on_rollout_start(**given))
            await self._call_hooks(lambda hook: hook.on_trace_start(**given, tracer=tracer))
            self._began = time.time()
            try:
                return await self._adapter.run(self._agent, task, resources)
            finally:
                if not self.stopping:
                    await self._call_hooks(lambda hook: hook.on_trace_end(**given, tracer=tracer))

    def _final_output(self, result: Any) -> Any:
        try:
            return self._adapter.final_output(result)
        except Exception:  # it is only shown
            logger.debug("the final output of a result could not be read", exc_info=True)
            return None

    async def _input(self) -> Any:
        """Return the agent's input. It is a copy, so the reward function receives the unchanged task."""
        task = copy.deepcopy(self.rollout.input)
        return task if self._loaded.input is None else await make_input(self._loaded.input, task)

    async def _reward(self, result: Any) -> Reward | None:
        weights = self._loaded.reward_weights
        if self._loaded.reward is not None:
            return await score(self._loaded.reward, self.rollout.input, result, weights)
        with own_work(f"adapter {self._adapter.name!r} cannot read the reward from what the agent returned"):
            returned = self._adapter.returned_reward(result)
        if returned is None:
            return self._weighted_emission(weights) if weights else None
        try:
            return as_reward(returned, weights)
        except ValueError as error:
            name = type(self._agent).__name__
            raise RewardError(f"{name} returned {error}: a rollout returns its reward, or None") from None

    def _weighted_emission(self, weights: Mapping[str, float]) -> Reward | None:
        """Return the last reward that the agent emitted, weighted.

        It replaces the emitted reward as the attempt's reward. None: the agent emitted no reward.
        """
        emitted = next((span for span in reversed(self.attempt.notes) if span.name == semconv.REWARD), None)
        if emitted is None:
            return None
        try:
            return as_reward(emitted_value(emitted), weights)
        except ValueError as error:
            raise RewardError(f"{type(self._agent).__name__} emitted {error}") from None

    def _given(self) -> dict[str, Any]:
        return {"agent": self._agent, "runner": self._runner, "rollout": self.rollout}

    def _note(self, span: Span) -> None:
        self.attempt.notes.append(span)

    async def _call_hooks(self, call: Callable[[Hook], Awaitable[None]]) -> None:
        for hook in self._loaded.hooks:
            try:
                await call(hook)
            except BaseException as error:
                if is_ours(error):
                    raise
                logger.exception("hook %s failed", type(hook).__name__)


def _kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, RewardError):
        return "reward"
    return "input" if isinstance(error, UsageError) and not isinstance(error, UnknownAgent) else "agent"
