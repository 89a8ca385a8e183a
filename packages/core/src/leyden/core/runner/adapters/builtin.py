"""The adapters that need no framework: `LitAgent` objects, functions of a task, and command lines."""

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
"""Key of `OpenAttempt.extra` under which the runner keeps the `AttemptedRollout`."""

logger = logging.getLogger(__name__)


class PlainAdapter(Adapter):
    """No framework, so no structure to record and no shape that a task must have."""

    def check(self, agent: Any, task: Task) -> None:
        """Every task is fine."""

    def instrument(self) -> None:
        """Nothing to do."""

    def uninstrument(self) -> None:
        """Nothing to undo."""


class LitAgentAdapter(PlainAdapter):
    """Runs `LitAgent` objects, async methods on the loop and the others in a thread."""

    name = "lit_agent"

    def supports(self, agent: object) -> bool:
        """Whether `agent` is a `LitAgent`."""
        return isinstance(agent, LitAgent)

    def fresh(self, agent: LitAgent[Any]) -> LitAgent[Any]:
        """A deep copy; a shallow one, with a warning, where something the agent holds cannot be copied."""
        try:
            return copy.deepcopy(agent)
        except Exception as error:
            _warn_shallow(type(agent), repr(error))
            return copy.copy(agent)

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """The function that `@rollout` has made an agent of."""
        return [thing.function] if isinstance(thing, RolloutFunction) else None

    async def run(self, agent: LitAgent[Any], task: Task, resources: Mapping[str, Resource]) -> Any:
        """Call the method for the rollout's mode; spans that it returns are stored with the attempt."""
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
        """All that a `LitAgent` returns is its reward."""
        return result


class FunctionAdapter(PlainAdapter):
    """Runs functions of a task, objects that are called like one, and objects with a method `run`.

    What they return is their result, never a reward.
    """

    name = "function"

    def supports(self, agent: object) -> bool:
        """Whether `agent` has parameters that a task can be given to."""
        function = function_of(agent)
        return function is not None and takes_task(function) and not is_unbound(function)

    def fresh(self, agent: Any) -> Any:
        """The agent itself: what it keeps, in globals or in itself, it keeps."""
        return agent

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when the parameters do not fit what `task` has."""
        arguments_for(_function(agent), task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Call the function, a coroutine function on the loop and any other in a thread, and complete its result.

        A framework's agent that was returned without a model call was made for this task, and is run on it.
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
    """Runs command lines: every attempt is a process of its own, so there is nothing to make fresh."""

    name = "command"

    def supports(self, agent: object) -> bool:
        """Whether `agent` is a `CommandAgent`."""
        return isinstance(agent, CommandAgent)

    def fresh(self, agent: CommandAgent) -> CommandAgent:
        """The agent itself: it keeps nothing."""
        return agent

    def check(self, agent: CommandAgent, task: Task) -> None:
        """Raise TaskError when an argument asks for a key that `task` does not have."""
        agent.filled(task)

    async def run(self, agent: CommandAgent, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Run the command in the open attempt's name."""
        attempt, _ = _open()
        with own_work("the command cannot be run", CommandFailed):
            return await agent.run(task, attempt)


def function_of(agent: object) -> Callable[..., Any] | None:
    """What is called to run `agent`: itself, or its method `run`; None for a class, and where there is neither."""
    if inspect.isclass(agent):
        return None
    found = agent if callable(agent) else getattr(agent, "run", None)
    return found if callable(found) else None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function` runs none of it yet, so that it can be called on the event loop."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def is_unbound(function: Callable[..., Any]) -> bool:
    """Whether `function` was taken from a class, and wants an object of it first."""
    return inspect.isfunction(function) and next(iter(signature_of(function).parameters), None) == "self"


def _function(agent: Any) -> Callable[..., Any]:
    function = function_of(agent)
    if function is None:
        raise LeydenError(f"a {type(agent).__name__} is not called for a task")
    return function


def _called(function: Callable[..., Any], arguments: Arguments) -> Any:
    """Call a sync function, and read in this same thread the iterator that it returns."""
    return completed_here(arguments.call(function))


@functools.cache
def _warn_shallow(kind: type, reason: str) -> None:
    logger.warning("%s cannot be deep-copied (%s): attempts share what it holds", kind.__name__, reason)


def _is_spans(returned: object) -> TypeGuard[list[Span]]:
    return isinstance(returned, list) and all(isinstance(item, Span) for item in cast("list[object]", returned))


def _open() -> tuple[OpenAttempt, AttemptedRollout]:
    attempt = current_attempt()
    if attempt is None or ROLLOUT not in attempt.extra:
        raise LeydenError("a LitAgent or a command runs only inside an attempt of a Runner")
    return attempt, attempt.extra[ROLLOUT]
