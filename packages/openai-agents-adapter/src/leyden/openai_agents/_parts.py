"""What the SDK's objects are made of, where they keep nothing of one run for another."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from leyden.openai_agents._runs import run_of

STATELESS = (
    *("agents.agent", "agents.tool", "agents.models", "agents.model_settings", "agents.run", "agents.guardrail"),
    *("agents.handoffs", "agents.lifecycle", "agents.function_schema", "agents.tool_guardrails", "agents.prompts"),
    *("agents.agent_output", "agents.retry", "agents.decorators", "openai.types"),
)
"""Modules whose objects only say how a run goes. Sessions and MCP servers are left out: they keep what was said."""
OWN = ("session", "context")
"""Options of a run of which an attempt has a copy, which is another object than the one that the agent's code knows."""


def stateless_parts(thing: object) -> Iterable[object] | None:
    """The functions and objects inside of `thing`; None where it may remember something, or is none of the SDK's."""
    if not any(base.__module__.startswith(STATELESS) for base in type(thing).__mro__):
        return None
    held = dict(getattr(thing, "__dict__", {}))
    if dataclasses.is_dataclass(thing):
        held |= {field.name: getattr(thing, field.name, None) for field in dataclasses.fields(thing)}
    return [part for value in held.values() for part in _flat(value)]


def parts_not_copied(agent: Any) -> Iterable[object] | None:
    """What the runs of all attempts have in common, and what a copy would not stand for: the agent and its options."""
    run = run_of(agent)
    if run is None:
        return None
    own = [run.options[name] for name in OWN if run.options.get(name) is not None]
    return [run.agent, *own, *_flat({name: value for name, value in run.options.items() if name not in OWN})]


def _flat(value: Any) -> Iterator[Any]:
    """What containers hold, at any depth: those of an agent are its settings."""
    if isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _flat(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("Iterable[Any]", value):
            yield from _flat(item)
    elif isinstance(value, functools.partial):
        partial = cast("functools.partial[Any]", value)
        yield from _flat([partial.func, *partial.args, *partial.keywords.values()])
    else:
        yield value
