"""What an agent returned and kept, as plain values that two processes can compare. Imports no framework."""

import dataclasses
import hashlib
import inspect
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOLATILE = frozenset(
    {
        *("id", "created", "created_at", "run_id", "response_metadata", "usage_metadata", "usage", "models_usage"),
        *("system_fingerprint", "timestamp", "trace_id", "span_id", "service_tier", "response_id", "token_usage"),
        *("usage_metrics", "_request_id", "completed_at", "thread_id", "checkpoint_id", "logprobs", "obfuscation"),
        *("timings", "started_at", "ended_at", "message_id", "task_id", "agent_id", "fingerprint", "request_id"),
    }
)
"""Names of fields that differ from run to run."""
_IDS = re.compile(r"\b(?:call|chatcmpl|msg|resp|fc|lc_run-|run-)[-_][A-Za-z0-9_-]+")
_UUIDS = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b(?:-\d+)?")
_ADDRESSES = re.compile(r"0x[0-9a-f]{6,}")
_FRAMES = re.compile(r' *File "[^"\n]+", line \d+, in [^\n]*\n(?: {4}[^\n]*\n+|\n+)*')
"""Of a traceback that is quoted in a text: what stands between an agent and its client shows there."""
_URLS = re.compile(r"http://127\.0\.0\.1:\d+")
_DEEPEST = 12


def same_text(text: str) -> str:
    """`text` without what differs from run to run: ids, addresses, ports, frames of tracebacks."""
    for pattern, name in (
        (_FRAMES, ""),
        (_UUIDS, "UUID"),
        (_IDS, "ID"),
        (_ADDRESSES, "0x"),
        (_URLS, "http://provider"),
    ):
        text = pattern.sub(name, text)
    return text


def without_uuids(text: str) -> str:
    """`text` without UUIDs: one of their groups may be a number that stands in a task."""
    return _UUIDS.sub("UUID", text)


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON has it: classes by name with their fields, without what differs from run to run."""
    if value is None or isinstance(value, bool) or type(value) in (int, float):
        return value
    if type(value) is str:
        return same_text(value)
    if depth > _DEEPEST:
        return "(deeper)"
    kind: str = type(value).__name__
    if isinstance(value, str):
        return {"class": kind, "text": same_text(str.__str__(value))}
    if isinstance(value, bytes | bytearray):
        return {"class": kind, "hex": value.hex()}
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in _items(value) if key not in VOLATILE}
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]  # of any kind
        return [plain(item, depth + 1) for item in items]
    if isinstance(value, set | frozenset):
        members: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]  # of any kind
        return sorted((plain(item, depth + 1) for item in members), key=str)
    whole: Any = value
    return {"class": kind, **_content(whole, depth)}


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())


def _content(value: Any, depth: int) -> dict[str, Any]:
    if isinstance(value, BaseException):
        return {"text": same_text(str(value))}
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a DataFrame
        return {"columns": plain(value.to_dict("list"), depth + 1)}
    if hasattr(value, "tolist"):  # numpy
        return {"value": plain(value.tolist(), depth + 1)}
    fields = _fields(value)
    shown = {name: plain(item, depth + 1) for name, item in fields.items() if name not in VOLATILE and name[:1] != "_"}
    return {name: item for name, item in shown.items() if not inspect.isroutine(fields[name])}


def _fields(value: Any) -> dict[str, Any]:
    if callable(value):  # a class or a function
        return {}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    declared: dict[str, Any] | None = getattr(value.__class__, "model_fields", None)
    if declared is not None:
        return {name: getattr(value, name, None) for name in declared}
    return dict(getattr(value, "__dict__", {}))


def state_of(expression: str | None, path: str, reference: str) -> Any:
    """The value of `expression` in the agent's module; None where none is given."""
    if expression is None:
        return None
    module_name = reference.partition(":")[0]
    named = sys.modules.get(module_name)
    files = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == path]
    module = named or files[-1]
    return plain(eval(expression, vars(module)))


def task_key(task: Any) -> str:
    """A name for a task, for files."""
    return hashlib.sha256(json.dumps(task, sort_keys=True, default=str).encode()).hexdigest()[:12]


def dump(folder: str, task: Any, seen: Mapping[str, Any]) -> int:
    """Write what was seen of one run on `task`; returns how many there were before."""
    number = 0
    while True:
        path = Path(folder) / f"{task_key(task)}-{number}.json"
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(descriptor, "w") as file:
            json.dump(seen, file)
        return number
