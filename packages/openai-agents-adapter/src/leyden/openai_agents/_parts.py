"""Stateless parts: what the SDK's objects consist of, where they keep nothing across runs."""

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
"""Modules whose objects only define a run. Sessions and MCP servers are left out: they keep messages."""
COPIED_OPTIONS = ("session", "context")
"""Run options that each attempt copies; the agent's code knows the original object."""


def stateless_parts(thing: object) -> Iterable[object] | None:
    """Return the functions and objects in `thing`; None where it may keep state or is not the SDK's."""
    if not any(base.__module__.startswith(STATELESS) for base in type(thing).__mro__):
        return None
    attributes = dict(getattr(thing, "__dict__", {}))
    if dataclasses.is_dataclass(thing):
        attributes |= {field.name: getattr(thing, field.name, None) for field in dataclasses.fields(thing)}
    return [part for value in attributes.values() for part in _flattened(value)]


def parts_not_copied(agent: Any) -> Iterable[object] | None:
    """Return what the runs of all attempts share, and originals that the agent's code may use."""
    run = run_of(agent)
    if run is None:
        return None
    originals = [run.options[name] for name in COPIED_OPTIONS if run.options.get(name) is not None]
    return [
        run.agent,
        *originals,
        *_flattened({name: value for name, value in run.options.items() if name not in COPIED_OPTIONS}),
    ]


def _flattened(value: Any) -> Iterator[Any]:
    """Yield what containers hold, at any depth: those of an agent are its settings."""
    if isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _flattened(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("Iterable[Any]", value):
            yield from _flattened(item)
    elif isinstance(value, functools.partial):
        partial = cast("functools.partial[Any]", value)
        yield from _flattened([partial.func, *partial.args, *partial.keywords.values()])
    else:
        yield value
