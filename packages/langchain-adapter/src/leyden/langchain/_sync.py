"""Sync detection: finds LangChain agents that work only by `invoke`, as parts have no async form.

LangChain runs a sync tool or node in a thread where an agent is awaited. Sync middleware that wraps calls
(`@wrap_model_call def ...`) and a checkpointer of a sync database client raise NotImplementedError instead.
"""

import functools
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, cast

PACKAGES = ("langchain", "langgraph", "langsmith")
"""Packages whose objects and closures are searched: `create_agent` keeps its middleware there."""
MOST_PARTS = 20_000
WRAPPING = (("wrap_model_call", "awrap_model_call"), ("wrap_tool_call", "awrap_tool_call"))
LEAVES = ("AgentMiddleware", "BaseCheckpointSaver", "BaseLanguageModel", "BaseStore", "BaseTool")
THREAD = "leyden-"
"""Prefix of Leyden's thread ids; only such threads are deleted from a checkpointer."""

_async_savers: dict[type, bool] = {}
"""By checkpointer class: whether its savers can be awaited."""
_last_agent: list[tuple[Any, list[Any]]] = []
"""Last agent and its parts: thousands of attempts use one agent."""


async def works_only_sync(agent: Any) -> bool:
    """Whether awaiting `agent` fails, or skips its author's `invoke`, and calling `invoke` works."""
    parts = _parts_of(agent)
    if any(_is_async_only(part) for part in parts):
        return False
    if any(_overrides_invoke(layer) for layer in layers(agent)) or any(map(_is_sync_middleware, parts)):
        return True
    saver, config = checkpoints(agent)
    return config is not None and not await _can_await(saver, config)


def is_missing_async(error: NotImplementedError) -> bool:
    """Whether LangChain or LangGraph itself raised `error`: a part without an async form was missed."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__")).startswith(PACKAGES)


def layers(agent: Any) -> Iterator[Any]:
    """Yield `agent` and what it wraps (`with_config`, `with_retry`, message histories)."""
    while agent is not None:
        yield agent
        agent = getattr(agent, "bound", None)


def checkpoints(agent: Any) -> tuple[Any, Any]:
    """Return the checkpointer of `agent`, and the config of this attempt's own thread; or None and None."""
    found = list(layers(agent))
    saver = next((saver for layer in found if (saver := getattr(layer, "checkpointer", None))), None)
    for layer in found:
        config: Mapping[str, Any] = getattr(layer, "config", None) or {}
        thread = str(config.get("configurable", {}).get("thread_id"))
        if thread.startswith(THREAD) and hasattr(saver, "adelete_thread"):
            return saver, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return None, None


def _parts_of(agent: Any) -> list[Any]:
    *_, innermost = layers(agent)
    key = getattr(innermost, "nodes", innermost)  # copies of a graph under other settings share their nodes
    if not (_last_agent and _last_agent[0][0] is key):
        _last_agent[:] = [(key, list(_walk(agent)))]
    return _last_agent[0][1]


def _walk(agent: Any) -> Iterator[Any]:
    """Yield what `agent` is made of, without the user's own code, which states what it calls."""
    pending, seen = [agent], dict[int, Any]()
    while pending and len(seen) < MOST_PARTS:
        part = pending.pop()
        if id(part) in seen or isinstance(part, str | int | float | bytes | type(None)):
            continue
        seen[id(part)] = part  # kept alive, so that no later part gets its id
        yield part
        pending.extend(_contents(part))


def _contents(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(cast("Mapping[Any, Any]", part).values())
    if isinstance(part, list | tuple | set | frozenset):
        return list(cast("list[Any]", part))
    if isinstance(part, functools.partial):
        return [cast("functools.partial[Any]", part).func, *part.args, *part.keywords.values()]
    if isinstance(part, MethodType):
        return [part.__self__]
    if isinstance(part, FunctionType):
        wrapped = getattr(part, "__wrapped__", None)
        return [wrapped] if wrapped is not None else _cells(part)
    if isinstance(part, type) or _is_leaf(part) or not type(part).__module__.startswith(PACKAGES):
        return []
    return list(getattr(part, "__dict__", {}).values())


def _cells(function: FunctionType) -> list[Any]:
    if not str(function.__module__).startswith(PACKAGES):
        return []
    found: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            continue
    return found


def _is_leaf(part: Any) -> bool:
    """Whether its contents do not matter: tools and models run alone, middleware is checked as a whole."""
    return any(base.__name__ in LEAVES for base in _bases(part))


def _bases(part: Any) -> list[type[Any]]:
    """Return the LangChain classes of `part`, matched by name so that none is loaded for this."""
    return [base for base in type(part).__mro__ if base.__module__.startswith(PACKAGES)]


def _is_a(part: Any, name: str) -> bool:
    return any(base.__name__ == name for base in _bases(part))


def _is_sync_middleware(part: Any) -> bool:
    return any(_defines(part, sync) and not _defines(part, other) for sync, other in WRAPPING)


def _is_async_only(part: Any) -> bool:
    """Whether `invoke` fails at `part`: a tool, node, function or middleware that can only be awaited."""
    if _is_a(part, "StructuredTool"):
        return part.func is None and part.coroutine is not None
    if _is_a(part, "RunnableCallable"):
        return part.func is None
    if _is_a(part, "RunnableLambda"):
        return not hasattr(part, "func")
    return any(_defines(part, other) and not _defines(part, sync) for sync, other in WRAPPING)


def _defines(part: Any, name: str) -> bool:
    """Whether `part` is middleware that overrides a method that the base class only declares."""
    base = next((other for other in _bases(part) if other.__name__ == "AgentMiddleware"), None)
    return base is not None and getattr(part.__class__, name, None) is not getattr(base, name, None)


def _overrides_invoke(agent: Any) -> bool:
    """Whether the class of `agent` overrides `invoke` but not `ainvoke`, which then bypasses it."""
    defined = (vars(base).keys() & {"invoke", "ainvoke"} for base in type(agent).__mro__)
    return next(filter(None, defined), None) == {"invoke"}


async def _can_await(saver: Any, config: Any) -> bool:
    """Whether `saver` has async methods. Calls the method that a graph calls first, as no attribute shows it."""
    if type(saver) not in _async_savers:
        try:
            await saver.aget_tuple(config)
        except NotImplementedError:
            _async_savers[type(saver)] = False
        except Exception:  # any other failure, the agent meets itself
            return True
        else:
            _async_savers[type(saver)] = True
    return _async_savers[type(saver)]
