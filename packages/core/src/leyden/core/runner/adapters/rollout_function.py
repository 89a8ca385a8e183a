"""`@rollout`: decorator that makes a `LitAgent` of a function. Arguments are passed by name, as in Agent Lightning.

The first argument is the task. Other arguments are chosen by name: `resources` (all of them), `llm` (the first LLM),
`prompt_template` (the first template), `rollout`.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from leyden.core.data.resources import LLM, NamedResources, PromptTemplate, Resource
from leyden.core.data.rollout import AttemptedRollout, Task
from leyden.core.errors import UsageError
from leyden.core.runner.adapters.lit_agent import LitAgent, RolloutResult

OFFERED = ("resources", "llm", "prompt_template", "rollout")


class RolloutFunction(LitAgent[Task]):
    """Agent that `@rollout` makes of a function. A call of it calls the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.arguments = offered_arguments(function)
        self._async = inspect.iscoroutinefunction(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RolloutFunction":
        return self  # the agent holds only the function

    def is_async(self) -> bool:
        """Return whether the function is a coroutine function."""
        return self._async

    def rollout(self, task: Task, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Call the function with the arguments that its parameters name."""
        return self.function(task, **self._given(resources, rollout))

    async def rollout_async(self, task: Task, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Call the function with the arguments that its parameters name, and await it."""
        return await self.function(task, **self._given(resources, rollout))

    def _given(self, resources: NamedResources, rollout: AttemptedRollout) -> dict[str, Any]:
        choose: dict[str, Callable[[], Any]] = {
            "resources": lambda: resources,
            "llm": lambda: first_resource(resources, LLM),
            "prompt_template": lambda: first_resource(resources, PromptTemplate),
            "rollout": lambda: rollout,
        }
        return {name: choose[name]() for name in self.arguments}


def rollout(function: Callable[..., Any]) -> RolloutFunction:
    """Make a `LitAgent` of `function`, sync or async.

    Raises UsageError when it takes no task, or has a required parameter that is not offered.
    """
    return RolloutFunction(function)


def offered_arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the offered arguments that `function` takes after the task.

    Raises UsageError for a required parameter that is not offered, and where there is no parameter for the task.
    """
    kinds = inspect.Parameter
    parameters = list(inspect.signature(function).parameters.values())
    name = getattr(function, "__name__", repr(function))
    if not parameters or parameters[0].kind not in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
        raise UsageError(f"@rollout: {name} must take the task as its first argument")
    arguments: list[str] = []
    for parameter in parameters[1:]:
        if parameter.kind is kinds.VAR_KEYWORD:
            continue
        if parameter.name in OFFERED and parameter.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
            arguments.append(parameter.name)
        elif parameter.default is kinds.empty and parameter.kind is not kinds.VAR_POSITIONAL:
            raise UsageError(
                f"@rollout: {name} has a parameter {parameter.name!r}; parameters can be {', '.join(OFFERED)}"
            )
    return tuple(arguments)


def first_resource(resources: Mapping[str, Resource], kind: type[Resource]) -> Resource:
    """Return the first resource of type `kind`. Raises UsageError when there is none."""
    for resource in resources.values():
        if isinstance(resource, kind):
            return resource
    raise UsageError(f"the agent needs a resource of type {kind.__name__}, but the rollout has {sorted(resources)}")
