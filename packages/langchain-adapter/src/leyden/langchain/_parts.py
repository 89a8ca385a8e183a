"""What LangChain's and LangGraph's objects are made of, where they keep nothing of one run for another."""

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
"""Packages whose objects only say how a run goes; what they remember lies in checkpointers, stores, caches, histories.

`langchain_core.chat_history`, `stores`, `caches`, `rate_limiters` and `vectorstores` are left out on purpose.
"""
MEMORIES = ("checkpointer", "store", "cache")
"""Where a compiled graph remembers."""
SPECIFICATIONS = ("channels", "managed", "stream_channels")
"""Of a compiled graph: copied into each run."""


def stateless_parts(thing: object) -> Iterable[object] | None:
    """The functions and objects inside of `thing`; None where it may remember something, or is none of LangChain's."""
    if not any(base.__module__.startswith(STATELESS) for base in type(thing).__mro__):
        return None
    held = dict(_attributes(thing))
    if any(held.get(name) for name in MEMORIES if not isinstance(held.get(name), bool)):
        return None
    return [part for name, value in held.items() if name not in SPECIFICATIONS for part in _flat(value)]


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    yield from (getattr(thing, "__pydantic_private__", None) or {}).items()
    for base in type(thing).__mro__:
        for name in getattr(base, "__slots__", ()):
            if name != "__dict__" and hasattr(thing, name):
                yield name, getattr(thing, name)


def _flat(value: Any) -> Iterator[Any]:
    """What containers hold, at any depth: those of a runnable are its settings."""
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
