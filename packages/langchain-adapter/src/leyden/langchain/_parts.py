"""Stateless parts: what LangChain and LangGraph objects consist of where they keep nothing across runs."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

STATELESS = (
    *("langchain_core.runnables", "langchain_core.prompts", "langchain_core.output_parsers", "langchain_core.tools"),
    *("langchain_core.messages", "langchain_core.documents", "langchain_core.callbacks", "langchain.tools"),
    *("langchain_openai.chat_models", "langchain_openai.llms", "langchain_openai.embeddings", "langgraph.pregel"),
    *("langgraph.graph", "langgraph.prebuilt", "langgraph.channels", "langgraph.types", "langgraph._internal"),
    *("langchain.agents", "langchain_classic.agents", "langchain_core.language_models", "langchain_core.load"),
)
"""Packages whose objects only define a run; checkpointers, stores, caches and histories hold state.

`langchain_core.chat_history`, `stores`, `caches`, `rate_limiters` and `vectorstores` are left out on purpose.
"""
MEMORIES = ("checkpointer", "store", "cache")
"""Fields in which a compiled graph keeps state."""
SPECIFICATIONS = ("channels", "managed", "stream_channels")
"""Fields of a compiled graph that each run copies."""


def stateless_parts(thing: object) -> Iterable[object] | None:
    """Return the functions and objects in `thing`; None where it may keep state or is not LangChain's."""
    if not any(base.__module__.startswith(STATELESS) for base in type(thing).__mro__):
        return None
    attributes = dict(_attributes(thing))
    if any(attributes.get(name) for name in MEMORIES if not isinstance(attributes.get(name), bool)):
        return None
    return [part for name, value in attributes.items() if name not in SPECIFICATIONS for part in _flattened(value)]


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    yield from (getattr(thing, "__pydantic_private__", None) or {}).items()
    for base in type(thing).__mro__:
        for name in getattr(base, "__slots__", ()):
            if name != "__dict__" and hasattr(thing, name):
                yield name, getattr(thing, name)


def _flattened(value: Any) -> Iterator[Any]:
    """Yield what containers hold, at any depth: those of a runnable are its settings."""
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
