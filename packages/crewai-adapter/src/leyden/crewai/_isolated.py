"""Isolation: what attempts share of CrewAI's objects, and what a one-attempt process has of its own."""

import inspect
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from leyden.core.runner.isolation.code_reading import is_library
from leyden.core.runner.isolation.shared_state import code_held_by
from leyden.crewai._fresh import is_written_to, kind_of, makes_crew

TOOL, MODEL = "crewai.tools.base_tool.BaseTool", "crewai.llms.base_llm.BaseLLM"
FLOW_METHOD = "crewai.flow.flow_wrappers.FlowMethod"
"""Class that `@start`, `@listen` and `@router` make of a flow's methods."""
FLOW_DEFINITION = "crewai.flow.flow_definition.FlowDefinition"
"""Class that CrewAI reads from a flow's class once, and keeps there when the first flow is made."""
STORAGE = "CREWAI_STORAGE_DIR"
_DATABASE = b"SQLite format 3\0"
_SQLITE_SIDE_FILES = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database while it is open."""


def stateless_parts(thing: object) -> Iterable[object] | None:
    """Return the parts of a tool or a flow's method, or nothing for a model or a flow's definition.

    None where `thing` keeps state, or is not CrewAI's.
    """
    kinds = {f"{base.__module__}.{base.__qualname__}" for base in type(thing).__mro__}
    if kinds & {MODEL, FLOW_DEFINITION}:
        return ()
    if FLOW_METHOD in kinds:
        return [value for value in vars(thing).values() if callable(value)]
    if TOOL not in kinds or getattr(thing, "max_usage_count", None) is not None:
        return None
    return [value for value in vars(thing).values() if callable(value)]


def parts_not_copied(agent: Any) -> Iterable[object] | None:
    """Return tools, and the functions that copies of a crew or agent share or that CrewAI calls for all.

    None where they share a memory.
    """
    kind = kind_of(agent)
    if isinstance(agent, type) or makes_crew(agent):
        return [agent, *_user_handlers()]
    if kind == "Flow":
        kind: object = agent.__class__
        return [kind, *_user_handlers(), *(getattr(agent, name) for name in agent.model_fields_set if name != "memory")]
    holders = [agent, *(agent.agents if kind == "Crew" else ())]
    if any(_has_shared_state(holder) for holder in holders):
        return None
    tools = [
        tool for holder in (*holders, *getattr(agent, "tasks", ())) for tool in getattr(holder, "tools", None) or ()
    ]
    return [*tools, *code_held_by(agent), *_user_handlers()]


def own_storage(folder: Path) -> None:
    """Keep this process's memories, knowledge and caches in `folder`, starting with what is stored now."""
    from crewai_core.paths import db_storage_path

    source, target = Path(db_storage_path()), folder / "crewai"
    target.mkdir(parents=True)
    _copy_folder(source, target)
    # An absolute path: CrewAI does not prepend the system's folder for application data.
    os.environ[STORAGE] = str(target)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the contents of `source`, to which processes may write; files that disappear are left out."""
    with suppress(FileNotFoundError):
        for path in sorted(source.iterdir()):
            if path.is_dir():
                (target / path.name).mkdir()
                _copy_folder(path, target / path.name)
            elif not path.name.endswith(_SQLITE_SIDE_FILES):
                with suppress(FileNotFoundError):
                    _copy_file(path, target / path.name)


def _copy_file(path: Path, target: Path) -> None:
    """Copy a file; SQLite itself copies a database, and waits for its writers."""
    with path.open("rb") as file:
        is_database = file.read(len(_DATABASE)) == _DATABASE
    if not is_database:
        shutil.copy2(path, target)
        return
    with closing(sqlite3.connect(path)) as source_database, closing(sqlite3.connect(target)) as target_database:
        source_database.backup(target_database)


def _user_handlers() -> Iterator[Any]:
    """Yield what users have registered with CrewAI for the whole process: event handlers and hooks."""
    from crewai.events.event_bus import crewai_event_bus
    from crewai.hooks import InterceptionPoint, get_hooks

    bus: Any = crewai_event_bus  # the bus has no public way to list its handlers
    handlers = [*bus._sync_handlers.values(), *bus._async_handlers.values()]
    registered = [handler for group in handlers for handler in group]
    registered += [hook for point in InterceptionPoint for hook in get_hooks(point)]
    for handler in registered:
        code = getattr(inspect.unwrap(handler), "__code__", None)
        if code is None or not is_library(code.co_filename):
            yield handler


def _has_shared_state(holder: Any) -> bool:
    """Whether a crew or an agent keeps something that its copies would share."""
    return (
        is_written_to(getattr(holder, "memory", None))
        or getattr(holder, "knowledge", None) is not None
        or bool(getattr(holder, "knowledge_sources", None))
    )
