"""Choice of the adapter for a user's agent, and the source of each attempt's agent."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import LeydenError, UnknownAgent
from leyden.core.runner.adapters.auto_instrument import try_again
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.builtin import (
    CommandAdapter,
    FunctionAdapter,
    LitAgentAdapter,
    PlainAdapter,
    function_of,
    is_unbound,
)
from leyden.core.runner.adapters.lit_agent import LitAgent, runs_nothing
from leyden.core.runner.adapters.registry import installed_adapters, supports
from leyden.core.runner.adapters.vote import VoteAdapter
from leyden.core.runner.attempts.error_text import key_advice, raised
from leyden.core.runner.attempts.own_failures import own_work
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.runner.user_code.arguments import for_task, has_signature, shown, signature_of
from leyden.core.runner.user_code.calls import name_of
from leyden.core.runner.user_code.loading import AgentReference, load_object
from leyden.core.tracing.context import agent_name

BUILT_IN: tuple[Adapter, ...] = (
    LitAgentAdapter(),
    CommandAdapter(),
    FunctionAdapter(),
    VoteAdapter(lambda agent: find_adapter(agent)),
)
METHODS = ("invoke", "ainvoke", "kickoff", "arun", "ask", "answer", "chat", "solve", "respond", "generate", "execute")
"""Common names of methods that run a user's own object, in the order in which advice suggests them."""


def find_adapter(agent: object, *, called: str | None = None, instead: str | None = None) -> Adapter:
    """Return the adapter that supports `agent`. Installed adapters, ordered by name, come before built-in ones.

    Raises UnknownAgent where no adapter does. The message names the object (`called`), its type, the adapters, and
    alternatives (`instead`). Raises it also for a `LitAgent` without a method that runs it.
    """
    adapters = (*installed_adapters(), *BUILT_IN)
    for adapter in adapters:
        if supports(adapter, agent):
            if isinstance(adapter, LitAgentAdapter) and runs_nothing(agent):
                prefix = f"{called}: " if called else ""
                kind = type(agent).__name__
                raise UnknownAgent(
                    f"{prefix}{kind} overrides neither rollout nor rollout_async, so there is nothing to run"
                )
            return adapter
    kind = f"{type(agent).__module__}.{type(agent).__qualname__}"
    names = ", ".join(adapter.name for adapter in adapters)
    subject = f"{called} is" if called else "the agent is"
    raise UnknownAgent(
        f"{subject} of type {kind.removeprefix('builtins.')}, which none of the installed adapters ({names}) can run: "
        f"{instead or _instead(agent, called)}"
    )


def _instead(agent: object, called: str | None) -> str:
    """Return advice what to give instead of `agent`, which no adapter runs."""
    function = function_of(agent)
    if function is not None:
        if not has_signature(function):
            return "its signature is unknown to Python; give a function that takes a task and calls it"
        if is_unbound(function):
            return f"it is the method {shown(function)} of a class; name the method of an object"
        return f"{shown(function)} has no parameter for a task"
    methods = [(name, found) for name in METHODS if callable(found := getattr(agent, name, None))]
    if methods and called:
        name, method = methods[0]
        return f"its method {shown(method)} could run it: name {called}.{name}"
    return "give a framework's agent, a LitAgent, a CommandAgent, a function of a task, or a function that makes one"


@dataclass(frozen=True, slots=True)
class AgentSource:
    """Source of each attempt's agent: the result of a factory, or a fresh version of one object from its adapter."""

    agent: Any
    """The user's object, or the first result of the factory. The adapter was chosen for it."""
    adapter: Adapter
    factory: Callable[[], Any] | None = None
    name: str | None = None
    """The user's name for the agent, where it is known."""

    @classmethod
    def of(cls, given: Any, *, called: str | None = None) -> "AgentSource":
        """Return a source for an agent, or for a function or class that makes one when called without arguments.

        Raises UnknownAgent when no adapter runs the agent, or when the factory fails.
        """
        if not is_factory(given):
            name = called.rpartition(":")[2].rpartition(".")[2] if called else None
            return cls(given, find_adapter(given, called=called), name=name)
        factory = called or name_of(given)
        if inspect.iscoroutinefunction(given):
            return cls(given, MadeByCoroutine(factory))
        try:
            agent = given()
        except (LeydenError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise UnknownAgent(_made_nothing(factory, given, error)) from error
        return cls(agent, _adapter_of_made(agent, factory, given), given)

    @classmethod
    def load(cls, reference: AgentReference, env: Sequence[str] = ()) -> "AgentSource":
        """Return a source for an import string or a command line. A command receives the secrets that `env` names.

        Raises AgentNotFound or UnknownAgent.
        """
        if not isinstance(reference, str):
            return cls.of(CommandAgent(reference, env))
        return cls.of(load_object(reference), called=reference)

    def fresh(self) -> Any:
        """Return an agent for one attempt. Raises the factory's own errors, and OwnFailure when the adapter fails."""
        try_again()
        agent_name.set(self.name)
        agent = self.agent if self.factory is None else self.factory()
        with own_work(f"adapter {self.adapter.name!r} cannot make a fresh agent"):
            return self.adapter.fresh(agent)


class MadeByCoroutine(PlainAdapter):
    """Adapter for an async factory, which is awaited in each attempt on the agent's event loop.

    Clients and connections to tool servers that the factory opens therefore belong to that loop.
    """

    name = "factory"

    def __init__(self, called: str) -> None:
        self._called = called
        self._adapter: Adapter | None = None

    def supports(self, agent: object) -> bool:
        """Return whether `agent` is an async function that needs no arguments."""
        return inspect.iscoroutinefunction(agent) and is_factory(agent)

    def fresh(self, agent: Any) -> Any:
        """Return the function itself, which `run` awaits."""
        return agent

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Await the factory and run its agent on `task`. Raises UnknownAgent when no adapter runs the made object."""
        try:
            made = await agent()
        except LeydenError:
            raise
        except Exception as error:
            raise UnknownAgent(_made_nothing(self._called, agent, error)) from error
        adapter = self._adapter = _adapter_of_made(made, self._called, agent)
        with own_work(f"adapter {adapter.name!r} cannot make a fresh agent"):
            made = adapter.fresh(made)
        with own_work(f"adapter {adapter.name!r} cannot check the task"):
            adapter.check(made, task)
        return await adapter.run(made, task, resources)

    def returned_reward(self, result: Any) -> Any:
        """Return the reward that the made agent's own adapter finds."""
        return None if self._adapter is None else self._adapter.returned_reward(result)


def is_factory(given: object) -> bool:
    """Return whether `given` makes an agent when it is called without arguments.

    That is a function without required parameters, or a class that no adapter runs itself. A function is not a factory
    if it takes `*args` or `**kwargs`, or has a parameter named like a task or its text.
    """
    if inspect.isclass(given):
        return issubclass(given, LitAgent) or not any(supports(adapter, given) for adapter in installed_adapters())
    if not inspect.isfunction(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        return False
    parameters = signature_of(given).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return not any(one.kind in variable or one.default is one.empty or for_task(one) for one in parameters)


def _adapter_of_made(agent: Any, factory: str, given: Callable[[], Any]) -> Adapter:
    instead = None
    if not inspect.isclass(given):
        instead = _is_called(given)
    elif methods := [name for name in METHODS if callable(getattr(agent, name, None))]:
        instead = (
            f"create an object of the class, and name its method, as in file.py:{given.__name__.lower()}.{methods[0]}"
        )
    return find_adapter(agent, called=f"what {factory}() returns", instead=instead)


def _made_nothing(factory: str, given: Any, error: BaseException) -> str:
    """Return the reason why `given`, which the user calls `factory`, made no agent."""
    if inspect.isclass(given) and has_signature(given):
        try:
            inspect.signature(given).bind()
        except TypeError:
            return (
                f"{factory} is a class whose constructor needs arguments, {shown(given)}: give an object, or a "
                "function without parameters that makes one"
            )
    text = raised(error)
    advice = key_advice(text) or ("" if inspect.isclass(given) else f"; {_is_called(given)}")
    return f"the factory {factory} failed: {text.rstrip('.') if advice else text}{advice}"


def _is_called(function: Callable[[], Any]) -> str:
    """Return advice on a function without required parameters, which the user may mean as the agent itself."""
    return (
        f"{shown(function)} needs no argument, so Leyden calls it to make the agent; if it is the agent, give it a "
        "parameter for the task"
    )
