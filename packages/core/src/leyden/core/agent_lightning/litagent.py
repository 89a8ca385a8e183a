"""`LitAgent` and the decorators of Agent Lightning 0.3."""

import logging
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, overload

from leyden.core.agent_lightning.replaced import WithReplaced, refuse
from leyden.core.errors import UsageError
from leyden.core.runner.adapters import lit_agent
from leyden.core.runner.adapters.agent_tracer import AgentTracer
from leyden.core.runner.adapters.rollout_function import RolloutFunction, rollout

log = logging.getLogger(__name__)

T = TypeVar("T")
_OLD_HOOKS = ("on_rollout_start", "on_rollout_end")


class LitAgent(WithReplaced, lit_agent.LitAgent[T], Generic[T]):
    """Leyden's `LitAgent`, which refuses what only the original has.

    `trained_agents` has no effect, as in the original since its version 0.2: the trainer's adapter selects calls.
    Raises ReplacedName for a subclass with the original's old hooks.
    """

    def __init__(self, *, trained_agents: str | None = None) -> None:
        self.trained_agents = trained_agents
        if trained_agents is not None:
            log.warning(
                "%s: trained_agents=%r has no effect: Trainer(adapter={'agent_match': ...}) selects what is trained",
                type(self).__name__,
                trained_agents,
            )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _OLD_HOOKS:
            if name in vars(cls):
                refuse(f"LitAgent.{name}", f"give Trainer(hooks=[...]) a Hook with {name}")

    def get_tracer(self) -> AgentTracer:
        """Return callback handlers of the installed adapters, as `tracer` does."""
        return self.tracer

    @property
    def trainer(self) -> NoReturn:
        """Raise ReplacedName."""
        refuse("LitAgent.trainer", "give the agent what it needs in its constructor")

    @property
    def runner(self) -> NoReturn:
        """Raise ReplacedName."""
        refuse("LitAgent.runner", "a Hook receives the runner")


@overload
def llm_rollout(function: Callable[..., Any], /) -> RolloutFunction: ...
@overload
def llm_rollout(*, strip_proxy: bool = True) -> Callable[[Callable[..., Any]], RolloutFunction]: ...
def llm_rollout(function: Callable[..., Any] | None = None, *, strip_proxy: bool = True) -> Any:
    """Make an agent of a function of a task and an `llm`.

    `strip_proxy` has no effect: the endpoint of every LLM belongs to its attempt, and `get_base_url` returns it.
    """
    del strip_proxy
    return _made("llm_rollout", "llm", function)


@overload
def prompt_rollout(function: Callable[..., Any], /) -> RolloutFunction: ...
@overload
def prompt_rollout() -> Callable[[Callable[..., Any]], RolloutFunction]: ...
def prompt_rollout(function: Callable[..., Any] | None = None) -> Any:
    """Make an agent of a function of a task and a `prompt_template`."""
    return _made("prompt_rollout", "prompt_template", function)


def _made(decorator: str, argument: str, function: Callable[..., Any] | None) -> Any:
    def make(given: Callable[..., Any]) -> RolloutFunction:
        made = rollout(given)
        if argument not in made.arguments:
            raise UsageError(f"@{decorator}: {made.__name__} has no parameter {argument!r}")
        return made

    return make if function is None else make(function)


__all__ = ["LitAgent", "llm_rollout", "prompt_rollout", "rollout"]
