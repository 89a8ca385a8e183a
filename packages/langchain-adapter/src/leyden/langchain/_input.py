"""Input conversion: makes a LangChain object's input from a task row, where the form is obvious."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from leyden.core.data.rollout import Task
from leyden.core.runner.user_code.task_input import mapping_for, row_of, text_for, text_of

WHOLE = "root"
"""Field of pydantic's `RootModel`, by which LangChain describes an input that is no mapping."""
_last: list[tuple[Any, "Wanted"]] = []
"""Last agent and its input: a schema takes up to 0.1 s, and thousands of tasks use one agent."""


class Wanted(NamedTuple):
    """Input that an object takes."""

    keys: tuple[str, ...] = ()
    """Names of the mapping it takes; empty when it takes none."""
    required: frozenset[str] = frozenset()
    text: bool = False
    """Whether it takes a plain text or messages."""


def input_for(agent: Any, task: Task) -> Any:
    """Return the input for `agent`; raises TaskError with the keys found when it is not clear."""
    wanted = _without_whole(wanted_by(agent), task)
    if not wanted.keys:
        return text_for(task) if wanted.text else task
    text, ready = text_of(task), {}
    if text is not None and "messages" in wanted.keys and "messages" not in row_of(task):
        ready = {"messages": [("user", text)]}
    return mapping_for(task, wanted.keys, wanted.required, ready)


def _without_whole(wanted: Wanted, task: Task) -> Wanted:
    """Leave out the key `root`, unless the row has it.

    LangChain puts it in the schema of a `RunnableParallel` with a part that takes the whole input, as in `{"context":
    RunnableLambda(search), "question": RunnablePassthrough()}`; nothing reads a key of this name.
    """
    if WHOLE not in wanted.keys or WHOLE in row_of(task):
        return wanted
    keys = tuple(key for key in wanted.keys if key != WHOLE)
    return Wanted(keys, wanted.required - {WHOLE}, text=wanted.text or not keys)


def wanted_by(agent: Any) -> Wanted:
    """Return what `agent` takes, by its state or its input schema."""
    builder = getattr(agent, "builder", None)
    schemas: Mapping[Any, Mapping[str, Any]] = getattr(builder, "schemas", {})
    if (schema := getattr(builder, "input_schema", None)) in schemas:
        return Wanted(tuple(schemas[schema]))
    if _last and _last[0][0] is agent:
        return _last[0][1]
    _last[:] = [(agent, _by_schema(agent))]
    return _last[0][1]


def _by_schema(agent: Any) -> Wanted:
    try:
        found: dict[str, Any] = agent.get_input_jsonschema()
    except Exception:  # types that JSON cannot describe give no schema
        return Wanted()
    text = any(option.get("type") == "string" for option in [found, *found.get("anyOf", ())])
    return Wanted(tuple(found.get("properties", ())), frozenset(found.get("required", ())), text)
