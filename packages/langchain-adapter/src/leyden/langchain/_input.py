"""Input conversion: makes a LangChain object's input from a task row, where the form is obvious."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from leyden.core.data.rollout import Task
from leyden.core.runner.user_code.task_input import mapping_for, row_of, text_for, text_of

ROOT_KEY = "root"
"""Field of pydantic's `RootModel`, by which LangChain describes an input that is no mapping."""
_last_agent: list[tuple[Any, "AcceptedInput"]] = []
"""Last agent and its input: a schema takes up to 0.1 s, and thousands of tasks use one agent."""


class AcceptedInput(NamedTuple):
    """Input that an object takes."""

    keys: tuple[str, ...] = ()
    """Names of the mapping it takes; empty when it takes none."""
    required: frozenset[str] = frozenset()
    text: bool = False
    """Whether it takes a plain text or messages."""


def input_for(agent: Any, task: Task) -> Any:
    """Return the input for `agent`; raises TaskError with the keys found when it is not clear."""
    accepted = _without_root(accepted_by(agent), task)
    if not accepted.keys:
        return text_for(task) if accepted.text else task
    text, ready = text_of(task), {}
    if text is not None and "messages" in accepted.keys and "messages" not in row_of(task):
        ready = {"messages": [("user", text)]}
    return mapping_for(task, accepted.keys, accepted.required, ready)


def _without_root(accepted: AcceptedInput, task: Task) -> AcceptedInput:
    """Leave out the key `root`, unless the row has it.

    LangChain puts it in the schema of a `RunnableParallel` with a part that takes the whole input, as in `{"context":
    RunnableLambda(search), "question": RunnablePassthrough()}`; nothing reads a key of this name.
    """
    if ROOT_KEY not in accepted.keys or ROOT_KEY in row_of(task):
        return accepted
    keys = tuple(key for key in accepted.keys if key != ROOT_KEY)
    return AcceptedInput(keys, accepted.required - {ROOT_KEY}, text=accepted.text or not keys)


def accepted_by(agent: Any) -> AcceptedInput:
    """Return what `agent` takes, by its state or its input schema."""
    builder = getattr(agent, "builder", None)
    schemas: Mapping[Any, Mapping[str, Any]] = getattr(builder, "schemas", {})
    if (schema := getattr(builder, "input_schema", None)) in schemas:
        return AcceptedInput(tuple(schemas[schema]))
    if _last_agent and _last_agent[0][0] is agent:
        return _last_agent[0][1]
    _last_agent[:] = [(agent, _by_schema(agent))]
    return _last_agent[0][1]


def _by_schema(agent: Any) -> AcceptedInput:
    try:
        found: dict[str, Any] = agent.get_input_jsonschema()
    except Exception:  # types that JSON cannot describe give no schema
        return AcceptedInput()
    text = any(option.get("type") == "string" for option in [found, *found.get("anyOf", ())])
    return AcceptedInput(tuple(found.get("properties", ())), frozenset(found.get("required", ())), text)
