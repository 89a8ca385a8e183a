"""Input conversion: makes the input of AutoGen's `run` from a task row."""

from collections.abc import Mapping
from typing import Any, cast

from autogen_agentchat.messages import BaseChatMessage, TextMessage

from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError
from leyden.core.runner.user_code.task_input import text_for


def input_for(task: Task) -> Any:
    """Return a text or AutoGen messages; raises TaskError with what it found when `task` has neither."""
    if isinstance(task, BaseChatMessage):
        return task
    given = text_for(task)
    return given if isinstance(given, str) else _messages(given)


def _messages(given: Any) -> list[Any]:
    found: list[Any] = []
    for message in cast("list[Any]", given) if isinstance(given, list) else [given]:
        if isinstance(message, BaseChatMessage):
            found.append(message)
            continue
        source, content = _parts(message)
        if source in ("assistant", "system", "tool") or not isinstance(content, str):
            description = f"a message of role {source!r}" if isinstance(content, str) else f"the message {message!r}"
            raise TaskError(
                f"the task's messages hold {description}; AutoGen's agents take texts of role user, or AutoGen's own "
                "messages"
            )
        found.append(TextMessage(content=content, source=source))
    if not found:
        raise TaskError("the task's messages are empty; the agent takes at least one")
    return found


def _parts(message: Any) -> tuple[str, Any]:
    """Return source and content of `{"role": …, "content": …}`, of AutoGen's `source`, or of a pair."""
    if isinstance(message, Mapping):
        row = cast("Mapping[str, Any]", message)
        return str(row.get("source", row.get("role", "user"))), row.get("content")
    pair = cast("list[Any]", message) if isinstance(message, list | tuple) else []
    return (str(pair[0]), pair[1]) if len(pair) == 2 else ("user", cast("Any", message))
