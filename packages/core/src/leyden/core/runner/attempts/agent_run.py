"""`AgentRun`: runs an attempt's agent in this process and scores what it returned.

The attempt itself (its claim, its limits, its end in the store) is `AttemptRun`'s, which may be in another process.
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
from leyden.core.tracing.context import OpenAttempt, open_attempt, whole_process_for
from leyden.core.tracing.wire import unsupported_clients

logger = logging.getLogger(__name__)

Stage = Literal["result", "reward"]
Resources = Callable[[], Awaitable[NamedResources]]
"""Returns what the agent runs with; called once, within the attempt's time."""


class AgentRun:
    """One run of the agent `loaded` for `rollout`. Spans about it are appended to `attempt.notes`.

    `runner` is what hooks receive. `is_alone`: the process runs nothing else, ever.
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
        """Why it did not succeed, once it has ended."""
        self.stage: Stage = "result"
        """What is being waited for."""
        self.stopping = False
        """Set by the owner before it cancels `run`: what the agent still raises or returns is not recorded."""
        self._loaded, self._runner, self._resources, self._is_alone = loaded, runner, resources, is_alone
        self._adapter = loaded.source.adapter
        self._agent: Any = None
        self._began = time.time()

    @property
    def made_no_call(self) -> list[str]:
        """Why the agent may have made no model call that this process saw; empty where it made one."""
        return unsupported_clients.untold(self.attempt)

    async def run(self) -> None:
        """Run the agent and score what it returned; what goes wrong becomes `failure`."""
        try:
            result = await self._run_agent()
            self._note(await result_span(self.attempt, result, self._began))
            self.stage = "reward"
            reward = await self._reward(result)
        except BaseException as error:  # sys.exit() in a task would end the worker's loop
            if self.stopping:
                return
            await self._fail(error)
        else:
            if reward is not None and not self.stopping:
                self._note(reward_span(self.attempt, reward))

    def lost_time(self) -> str:
        """Return nothing: the agent of this process was loaded before the attempt began."""
        return ""

    def give_up(self, failure: Failure) -> None:
        """Note that the run is over because of `failure`; the owner then cancels `run`."""
        self.stopping, self.failure = True, failure
        if self.stage == "result":
            self._note(failed_span(self.attempt, self._began, failure))

    def kill(self) -> bool:
        """Return False: what runs in this process can only be cancelled."""
        return False

    async def end(self, spans: list[Span] | None) -> None:
        """Call the hooks that run last of all, with everything that is stored of the attempt; None: it is unknown."""
        if spans is None:
            return
        given = self._given()
        await self._call_hooks(lambda hook: hook.on_rollout_end(**given, spans=spans))

    async def _fail(self, error: BaseException) -> None:
        failure = await asyncio.to_thread(self._failure_from, error)  # which may call methods of the exception
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
            logger.info("rollout %s failed: %s: %s", self.rollout.rollout_id, failure.type, failure.message)

    def _failure_from(self, error: BaseException) -> Failure:
        if isinstance(error, OwnFailure):
            return own_failure("", error)
        if raised_by_adapter(error, self._adapter):
            return own_failure(f"adapter {self._adapter.name!r} failed", error)
        return Failure(kind=_kind_of(error), type=short_name(error), message=text_of(error))

    async def _run_agent(self) -> Any:
        with own_work("the rollout's resources cannot be read"):
            resources = await self._resources()
        task, tracer = await self._input(), AgentTracer()
        alone = whole_process_for(self.attempt) if self._is_alone else nullcontext()
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

    async def _input(self) -> Any:
        """What stands for the task before the agent. It is the agent's own: the reward gets the row as it was."""
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
        """The last reward that the agent emitted, weighted; it is then the attempt's in that one's place."""
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
