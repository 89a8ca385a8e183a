"""Input conversion: makes the input of a crew, a flow or an agent from a task row."""

import re
from collections.abc import Iterator
from typing import Any

from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError
from leyden.core.runner.user_code.task_input import ANSWER_KEYS, TEXT_KEYS, MadeInput, mapping_for, row_of, text_of

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_\-]*)}")
"""Placeholders that CrewAI fills in; it leaves other braces as they are."""
TASK_TEXTS, AGENT_TEXTS = ("description", "expected_output", "output_file"), ("role", "goal", "backstory")
STATE_ID = "id"
"""CrewAI's own key of a flow's inputs: it restores the state of an earlier flow with this id."""


def template(holder: Any, name: str) -> str | None:
    """Return a text of a task or agent with its placeholders, which CrewAI fills in on the object."""
    original = getattr(holder, f"_original_{name}", None)
    return getattr(holder, name, None) if original is None else original


def crew_inputs(crew: Any, task: Task) -> dict[str, Any]:
    """Return the inputs for `crew.kickoff`; raises TaskError with the keys found when they are not clear."""
    wanted = tuple(dict.fromkeys(_placeholders(crew)))
    if crew.before_kickoff_callbacks and (row := _without_answers(task, wanted)):
        return row  # callbacks may take any key, and add what the placeholders need
    if not wanted:
        raise TaskError(f"{_keys(task)}; no task or agent of the crew has a placeholder, such as {{question}}")
    required = () if crew.before_kickoff_callbacks else wanted
    return mapping_for(task, wanted, frozenset(required), {})


def flow_inputs(flow: Any, task: Task) -> dict[str, Any]:
    """Return the inputs for `flow.kickoff`: the keys that its state has, or all for a dict state.

    Raises TaskError with the keys found when nothing fits.
    """
    state = flow.state
    keys = _state_keys(state if isinstance(state, dict) else state.__class__.model_fields)
    if isinstance(state, dict) and (row := _without_answers(task, keys)):
        return row if isinstance(task, MadeInput) else {key: value for key, value in row.items() if key != STATE_ID}
    if not keys:
        raise TaskError(f"{_keys(task)}; the flow's state has no field for any of them")
    text, text_key = text_of(task), next((key for key in TEXT_KEYS if key in keys), None)
    ready = {} if text is None or text_key is None or text_key in row_of(task) else {text_key: text}
    return mapping_for(task, keys, frozenset(), ready)


def _placeholders(crew: Any) -> Iterator[str]:
    for holders, names in ((crew.tasks, TASK_TEXTS), (crew.agents, AGENT_TEXTS)):
        for holder in holders:
            for name in names:
                yield from PLACEHOLDER.findall(template(holder, name) or "")


def _state_keys(state: Any) -> tuple[str, ...]:
    return tuple(key for key in state if key != STATE_ID)


def _without_answers(task: Task, wanted: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(task, MadeInput):
        return dict(task)
    return {key: value for key, value in row_of(task).items() if key in wanted or key not in ANSWER_KEYS}


def _keys(task: Task) -> str:
    return f"the task has the keys {', '.join(map(str, row_of(task))) or '(none)'}"
