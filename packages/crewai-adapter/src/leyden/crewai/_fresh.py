"""Fresh agents: crews, flows and agents without state from other attempts. It runs nothing."""

import inspect
from collections.abc import Iterator
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from leyden.core.errors import UnknownAgent
from leyden.core.runner.isolation.alone import is_alone
from leyden.crewai._input import AGENT_TEXTS, TASK_TEXTS, template

KINDS = ("Crew", "Flow", "Agent")
_used = WeakValueDictionary[int, Any]()


def kind_of(agent: object) -> str | None:
    """Return which of `KINDS` the object or class `agent` is; matched by name, so that it loads nothing."""
    cls = agent if inspect.isclass(agent) else type(agent)
    return next((base.__name__ for base in cls.__mro__ if _is_crewai_class(base) and base.__name__ in KINDS), None)


def makes_crew(agent: object) -> bool:
    """Whether `agent` is of a `@CrewBase` class, or is one."""
    return getattr(agent, "is_crew_class", None) is True and callable(getattr(agent, "crew", None))


def resolved(agent: Any) -> Any:
    """Return the crew, flow or agent that `agent` is or makes; raises UnknownAgent when its class needs arguments."""
    if inspect.isclass(agent):
        try:
            agent = agent()
        except TypeError as error:
            raise UnknownAgent(
                f"{agent.__qualname__} needs arguments ({error}): give a function that makes it"
            ) from error
    return agent.crew() if makes_crew(agent) else agent


def fresh(agent: Any) -> Any:
    """Return another of the same kind that has not run.

    An object that cannot be copied is returned itself, once; then UnknownAgent is raised. Each agent from a function
    that makes agents is used once. In a process that runs one attempt, `agent` itself has not run.
    """
    agent = resolved(agent)
    if is_alone():
        if kind_of(agent) != "Agent":
            agent.tracing = False  # else CrewAI's own service gets prompts and answers
        return agent
    if kind_of(agent) == "Flow":
        return _fresh_flow(agent)
    return _fresh_crew(agent) if kind_of(agent) == "Crew" else agent.copy()


def refusals(agent: Any) -> Iterator[str]:
    """Yield why `agent` cannot run unattended and repeatedly."""
    if kind_of(agent) == "Flow":
        methods: dict[str, Any] = agent._definition.methods  # the object has no public name for its definition
        for name, method in methods.items():
            if method.human_feedback is not None:
                yield f"the flow waits for human input at {name!r}: remove @human_feedback"
        fields: dict[str, Any] = _class(agent).model_fields
        if is_written_to(fields["memory"].default) and not is_alone():
            yield "the flow's class has a memory, which all attempts would share: remove it, or make it read_only"
        return
    is_crew = kind_of(agent) == "Crew"
    for number, task in enumerate(agent.tasks if is_crew else ()):
        if task.human_input:
            yield f"the crew waits for human input at task {task.name or number}: remove human_input"
    for holder in (agent, *agent.agents, agent.manager_agent) if is_crew else (agent,):
        if is_written_to(getattr(holder, "memory", None)) and not is_alone():
            yield (
                f"{getattr(holder, 'role', None) or 'the crew'} has a memory, which all attempts would share: remove "
                "it, or make it read_only"
            )


def _fresh_crew(crew: Any) -> Any:
    copy = crew.copy()
    if type(copy) is not type(crew):
        return _use_once(crew, f"a {type(crew).__qualname__} cannot be copied; Leyden can copy only a Crew")
    # CrewAI fills in placeholders in the crew's own texts, and identifies agents by role alone.
    agents = {id(original): copied for original, copied in zip(crew.agents, copy.agents, strict=True)}
    for original, copied in zip(crew.agents, copy.agents, strict=True):
        _restore(copied, original, AGENT_TEXTS)
    for original, copied in zip(crew.tasks, copy.tasks, strict=True):
        _restore(copied, original, TASK_TEXTS)
        copied.output = None
        copied.agent = agents.get(id(original.agent), copied.agent)
    copy.tracing = False  # else CrewAI's own service gets prompts and answers
    copy._task_output_handler = _NoTaskLog()
    return copy


class _NoTaskLog:
    """Replaces CrewAI's log for `crewai replay`, a file that all crews of a user write to and empty, under one lock."""

    def update(self, task_index: int, log: dict[str, Any]) -> None:
        """Store nothing."""

    def reset(self) -> None:
        """There is nothing to delete."""

    def load(self) -> list[dict[str, Any]]:
        """Return no outputs."""
        return []


def _restore(copied: Any, original: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if (text := template(original, name)) != getattr(copied, name, None):
            setattr(copied, name, text)


def _fresh_flow(flow: Any) -> Any:
    cls = _class(flow)
    if cls.__name__ == "Flow" and _is_crewai_class(cls):
        other = cls.from_declaration(contents=flow._definition)
    else:
        given = {name: getattr(flow, name) for name in flow.model_fields_set if name not in ("memory", "tracing")}
        try:
            other = cls(**given)
        except TypeError as error:
            other = _use_once(flow, f"{cls.__qualname__} cannot be created again ({error})")
    other.tracing = False
    if isinstance(root := getattr(other.memory, "root_scope", None), str):
        other.memory.root_scope = f"{root}/leyden-{uuid4().hex}"  # CrewAI gives every flow a memory on disk
    return other


def _use_once(agent: Any, reason: str) -> Any:
    if _used.get(id(agent)) is agent:
        raise UnknownAgent(f"{reason}: give a function that makes it")
    _used[id(agent)] = agent
    return agent


def _class(agent: Any) -> Any:
    return agent.__class__


def is_written_to(memory: Any) -> bool:
    """Whether `memory`, a crew's or an agent's, is written to."""
    views = (memory, getattr(memory, "_memory", None))
    return bool(memory) and not any(getattr(view, "read_only", False) for view in views)


def _is_crewai_class(cls: type) -> bool:
    return cls.__module__.startswith("crewai.")
