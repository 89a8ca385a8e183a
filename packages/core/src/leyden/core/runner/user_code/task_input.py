"""Conversion of a task row to an agent's input.

All adapters share these rules, so that one dataset fits the agents of all of them. The result of a user's input
function (`--input`) replaces the row and is passed on unchanged.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError

TEXT_KEYS = ("question", "input", "prompt", "query", "text", "problem")
"""Keys of a row that may hold its text, in the order in which they are tried."""
ANSWER_KEYS = frozenset({"answer", "expected", "ground_truth", "label", "reference", "reward", "solution", "target"})
"""Keys for scoring. Their values are passed only to agents that require them."""
TEXT = f"{', '.join(TEXT_KEYS[:-1])} or {TEXT_KEYS[-1]}"


class MadeInput(dict[str, Any]):
    """A mapping that a user's input function made. All of its keys are meant for the agent, answers too."""


def is_row(task: Task) -> bool:
    """Return whether `task` is a mapping."""
    return isinstance(task, Mapping)


def row_of(task: Task) -> Mapping[str, Any]:
    """Return `task` if it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", task) if isinstance(task, Mapping) else {}


def text_of(task: Task) -> str | None:
    """Return the text of `task`: the task itself if it is a string, else the first of `TEXT_KEYS` that holds one."""
    if isinstance(task, str):
        return task
    row = row_of(task)
    return next((row[key] for key in TEXT_KEYS if isinstance(row.get(key), str)), None)


def text_for(task: Task) -> Any:
    """Return the input of an agent that takes text or messages. Raises TaskError when `task` has neither.

    A list counts as messages.
    """
    if isinstance(task, list):
        return cast("list[Any]", task)
    given = row_of(task).get("messages", text_of(task))
    if given is None:
        raise misfit(task, f"the agent takes a text under the key {TEXT}, or messages")
    return given


def mapping_for(
    task: Task, keys: Sequence[str], required: AbstractSet[str], ready: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the input of an agent that takes a mapping: `ready`, and the values of `task` for the names in `keys`.

    Where the agent takes only one key, the task's text may fill it. A `MadeInput` with one of the keys is passed
    unchanged. Raises TaskError when nothing fits, or a `required` key is missing.
    """
    if isinstance(task, MadeInput) and not task.keys().isdisjoint(keys):
        given = dict(task)
    else:
        given = _fitting(task, keys, required, ready)
    missing = sorted(required - set(given))
    if missing or not given:
        text = f", or a text under the key {TEXT}" if "messages" in keys else ""
        also = "also " if given else ""
        raise misfit(task, f"the agent {also}takes {', '.join(missing or keys)}{text}")
    return given


def _fitting(task: Task, keys: Sequence[str], required: AbstractSet[str], ready: Mapping[str, Any]) -> dict[str, Any]:
    row, text = row_of(task), text_of(task)
    given = {key: row[key] for key in keys if key in row and (key in required or key not in ANSWER_KEYS)}
    given.update(ready)
    if not given and text is not None and len(keys) == 1:
        given = {keys[0]: text}
    return given


def misfit(task: Task, requirement: str) -> TaskError:
    """Return the error with what was found, the `requirement` and what to do."""
    other = _no_text(task) if TEXT in requirement else ""
    return TaskError(f"{_described(task)}{other}; {requirement}{_hint(task)}")


def _described(task: Task) -> str:
    if isinstance(task, Mapping):
        has = "the result of --input has" if isinstance(task, MadeInput) else "the task has"
        return f"{has} the keys {', '.join(map(str, row_of(task))) or '(none)'}"
    return f"the task is a {type(task).__name__}"


def _no_text(task: Task) -> str:
    """Return what is under the first of `TEXT_KEYS` in place of a text; empty if there is no such key."""
    row = row_of(task)
    key = next((key for key in TEXT_KEYS if key in row), None)
    if key is None or text_of(task) is not None:
        return ""
    return f", of which {key} is {'null' if row[key] is None else f'of type {type(row[key]).__name__}, not a text'}"


def _hint(task: Task) -> str:
    return "" if isinstance(task, MadeInput) else "; or give --input, a function that makes the input from a task"
