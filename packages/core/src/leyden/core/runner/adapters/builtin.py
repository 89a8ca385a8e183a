"""Built-in adapters without a framework: for `LitAgent` objects, functions of a task, and command lines."""

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, cast

import msgspec

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import AttemptedRollout, Task
from leyden.core.data.span import Span
from leyden.core.errors import LeydenError
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.registry import supporting
from leyden.core.runner.adapters.rollout_function import RolloutFunction
from leyden.core.runner.attempts.own_failures import own_work
from leyden.core.runner.attempts.results import completed, completed_here
from leyden.core.runner.attempts.threads import in_thread
from leyden.core.runner.commands.command import CommandAgent, CommandFailed
from leyden.core.runner.user_code.arguments import Arguments, arguments_for, signature_of, takes_task
from leyden.core.tracing.context import OpenAttempt, current_attempt
from leyden.core.tracing.wire.unsupported_clients import CALLED

ROLLOUT = "rollout"
"""Key of `OpenAttempt.extra` that holds the `AttemptedRollout`."""

logger = logging.getLogger(__name__)


class PlainAdapter(Adapter):
    """Base of adapters without a framework: there is no structure to record, and a task may have any shape."""

    def check(self, agent: Any, task: Task) -> None:
        """Accept every task."""

    def instrument(self) -> None:
        """Do nothing."""

    def uninstrument(self) -> None:
        """Do nothing."""


class LitAgentAdapter(PlainAdapter):
    """Adapter that runs `LitAgent` objects: async methods on the loop, other methods in a thread."""

    name = "lit_agent"

    def supports(self, agent: object) -> bool:
        """Return whether `agent` is a `LitAgent`."""
        return isinstance(agent, LitAgent)

    def fresh(self, agent: LitAgent[Any]) -> LitAgent[Any]:
        """Return a deep copy, or a shallow copy with a logged warning where a part of the agent cannot be copied."""
        try:
            return copy.deepcopy(agent)
        except Exception as error:
            _warn_shallow(type(agent), repr(error))
            return copy.copy(agent)

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """Return the function of a `RolloutFunction`, which `@rollout` makes. None for other objects."""
        return [thing.function] if isinstance(thing, RolloutFunction) else None

    async def run(self, agent: LitAgent[Any], task: Task, resources: Mapping[str, Resource]) -> Any:
        """Call the method for the rollout's mode. Spans that it returns are stored with the attempt."""
        attempt, rollout = _open()
        training, named = rollout.mode == "train", dict(resources)
        if agent.is_async():
            call = agent.training_rollout_async if training else agent.validation_rollout_async
            returned = await completed(call(task, named, rollout))
        else:
            method = agent.training_rollout if training else agent.validation_rollout
            returned = await completed(await in_thread(_called, method, Arguments((task, named, rollout))))
        if _is_spans(returned):
            ids = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id}
            attempt.notes.extend(msgspec.structs.replace(span, **ids) for span in returned)
            return None
        return returned

    def returned_reward(self, result: Any) -> Any:
        """Return the result: a `LitAgent` returns only its reward."""
        return result


class FunctionAdapter(PlainAdapter):
    """Adapter that runs functions of a task, callable objects, and objects with a method `run`.

    Their return value is the result, never a reward.
    """

    name = "function"

    def supports(self, agent: object) -> bool:
        """Return whether `agent` has parameters that can take a task."""
        function = function_of(agent)
        return function is not None and takes_task(function) and not is_unbound(function)

    def fresh(self, agent: Any) -> Any:
        """Return the agent itself. Its own state and its globals stay shared."""
        return agent

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when the parameters do not fit `task`."""
        arguments_for(_function(agent), task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Call a coroutine function on the loop, or any other function in a thread, and return its completed result.

        The result may be a framework's agent, returned without a model call. The function then made it for this task,
        and the agent is run on the task.
        """
        function = _function(agent)
        arguments = arguments_for(function, task)
        if is_async(function):
            result = await completed(arguments.call(function))
        else:
            result = await completed(await in_thread(_called, function, arguments))
        attempt = current_attempt()
        if attempt is None or CALLED in attempt.extra or (made_by := supporting(result)) is None:
            return result
        made_by.check(result, task)
        return await made_by.run(result, task, resources)


class CommandAdapter(PlainAdapter):
    """Adapter that runs command lines. Every attempt is a process of its own, so `fresh` makes no copy."""

    name = "command"

    def supports(self, agent: object) -> bool:
        """Return whether `agent` is a `CommandAgent`."""
        return isinstance(agent, CommandAgent)

    def fresh(self, agent: CommandAgent) -> CommandAgent:
        """Return the agent itself, which has no state."""
        return agent

    def check(self, agent: CommandAgent, task: Task) -> None:
        """Raise TaskError when an argument uses a key that `task` does not have."""
        agent.filled(task)

    async def run(self, agent: CommandAgent, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Run the command for the open attempt and return what it printed."""
        attempt, _ = _open()
        with own_work("the command cannot be run", CommandFailed):
            return await agent.run(task, attempt)


def function_of(agent: object) -> Callable[..., Any] | None:
    """Return `agent` itself if it is callable, else its method `run`. None for a class, and where there is neither."""
    if inspect.isclass(agent):
        return None
    found = agent if callable(agent) else getattr(agent, "run", None)
    return found if callable(found) else None


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` runs none of its code yet, so that the call may be made on the event loop."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def is_unbound(function: Callable[..., Any]) -> bool:
    """Return whether `function` is a method taken from a class, so that it needs an object first."""
    return inspect.isfunction(function) and next(iter(signature_of(function).parameters), None) == "self"


def _function(agent: Any) -> Callable[..., Any]:
    function = function_of(agent)
    if function is None:
        raise LeydenError(f"a {type(agent).__name__} has no function that takes a task")
    return function


def _called(function: Callable[..., Any], arguments: Arguments) -> Any:
    """Call a sync function. If it returns an iterator, read that in this thread too."""
    return completed_here(arguments.call(function))


@functools.cache
def _warn_shallow(kind: type, reason: str) -> None:
    logger.warning("%s cannot be deep-copied (%s): attempts share the objects that it holds", kind.__name__, reason)


def _is_spans(returned: object) -> TypeGuard[list[Span]]:
    return isinstance(returned, list) and all(isinstance(item, Span) for item in cast("list[object]", returned))


def _open() -> tuple[OpenAttempt, AttemptedRollout]:
    attempt = current_attempt()
    if attempt is None or ROLLOUT not in attempt.extra:
        raise LeydenError("a LitAgent or a command can run only in an attempt of a Runner")
    return attempt, attempt.extra[ROLLOUT]
