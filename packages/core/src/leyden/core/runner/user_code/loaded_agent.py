"""`LoadedAgent`: an agent with its user's reward function, input function and hooks, as objects of this process."""

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from leyden.core.errors import TaskError, UsageError
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.attempts.error_text import raised
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.user_code.agent_spec import TaskExample
from leyden.core.runner.user_code.calls import name_of
from leyden.core.runner.user_code.input_function import InputFunction, check_input_function
from leyden.core.runner.user_code.loading import AgentReference, load_object
from leyden.core.runner.user_code.reward import RewardFunction, check_reward_function

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAgent:
    """The agent, with the functions that score it and make its input, and its hooks."""

    source: AgentSource
    reward: RewardFunction | None = None
    reward_weights: Mapping[str, float] | None = None
    input: InputFunction | None = None
    hooks: tuple[Hook, ...] = ()

    def check_tasks(self, examples: Iterable[TaskExample]) -> None:
        """Raise TaskError, with the task's place, for a task that the agent cannot take.

        With an input function, tasks are not checked: the agent receives what the function returns.
        """
        if self.input is not None:
            return
        for example in examples:
            try:
                self.source.adapter.check(self.source.agent, example.task)
            except TaskError as error:
                raise TaskError(f"{example.place}: {error}") from None
            except Exception:  # the attempt reports it, with its agent
                logger.debug("the task at %s could not be checked", example.place, exc_info=True)

    def functions(self) -> dict[str, Any]:
        """Return everything but the agent itself, under the names that `RunnerConfig` has for it."""
        return {
            "reward": self.reward,
            "reward_weights": self.reward_weights,
            "input": self.input,
            "hooks": self.hooks,
        }

    @classmethod
    def of(
        cls,
        agent: Any,
        reward: Any = None,
        *,
        reward_weights: Mapping[str, float] | None = None,
        input: Any = None,
        hooks: Iterable[Any] = (),
        env: Sequence[str] = (),
    ) -> "LoadedAgent":
        """Return a LoadedAgent from objects or import strings. A tuple as `agent` is a command line.

        Raises UsageError where something cannot be found or has the wrong type.
        """
        if isinstance(agent, str | tuple):
            source = AgentSource.load(cast(AgentReference, agent), env)
        else:
            source = AgentSource.of(agent)
        score, make = _found(reward), _found(input)
        if score is not None:
            check_reward_function(score)
        if make is not None:
            check_input_function(make)
        return cls(
            source=source,
            reward=score,
            reward_weights=reward_weights,
            input=make,
            hooks=tuple(_hook(given) for given in hooks),
        )


def _found(given: Any) -> Any:
    return load_object(given) if isinstance(given, str) else given


def _hook(given: Any) -> Hook:
    found = _found(given)
    try:
        hook = found() if inspect.isclass(found) else found
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(
            f"hook {name_of(found)} cannot be created: {raised(error)}; give an object of the class"
        ) from error
    if not isinstance(hook, Hook):
        subject = given if isinstance(given, str) else "a hook"
        raise UsageError(f"{subject} is of type {type(hook).__name__}, not a Hook")
    return hook
