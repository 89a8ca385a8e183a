"""Examples: what a rollout shows about a prompt component, as text for the model that writes a better one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from leyden.core.algorithm.task_rollouts import RolloutResult
from leyden.core.data import semconv
from leyden.core.data.prompts.edits import PromptComponent
from leyden.core.data.span import Span
from leyden.core.trajectory.messages import read_messages, text_of, tool_requests

INPUTS, OUTPUTS, FEEDBACK = "Inputs", "Generated Outputs", "Feedback"
"""Keys of an example."""
LONGEST_TEXT = 3000
"""Longest text of one message, in characters; the middle of a longer one is left out."""
MOST_CALLS = 6
"""Model calls of one rollout that an example shows; of more, the first and the last."""

Example = dict[str, Any]


def make_example(result: RolloutResult, name: str, component: PromptComponent | None) -> Example:
    """Return what a rollout shows about the component `name`; None stands for a prompt template of the agent.

    It has the task, the component's model calls without the component's own text, and as feedback the score with its
    dimensions, the reward function's reasons, failed tools and the error that ended the rollout.
    """
    calls = [span for span in result.calls if component is None or _has(span, name, component)]
    conversations = [_conversation(span, component) for span in calls]
    if len(conversations) > MOST_CALLS:
        left_out = len(conversations) - MOST_CALLS
        half = MOST_CALLS // 2
        conversations = [*conversations[:half], f"({left_out} calls are left out)", *conversations[-half:]]
    last = _answer(calls[-1]) if calls else ""
    inputs = {"task": shortened(_plain(result.rollout.input))}
    for number, text in enumerate(conversations, 1):
        inputs[f"model call {number}" if len(conversations) > 1 else "model call"] = text
    outputs = {"answer": last} if last else {}
    if final := _final(result.spans):
        outputs["result of the agent"] = final
    if not calls:
        outputs["note"] = "The agent made no model call with this text."
    return {INPUTS: inputs, OUTPUTS: outputs, FEEDBACK: feedback(result)}


def feedback(result: RolloutResult) -> str:
    """Return how a rollout was judged, and what went wrong in it, one sentence a line."""
    score = result.score
    lines = [f"Score: {score:g}." if score is not None else "It has no score."]
    if result.dimensions:
        lines.append("Parts of the score: " + ", ".join(f"{k} {v:g}" for k, v in result.dimensions.items()) + ".")
    for span in result.spans:
        if text := span.attributes.get(semconv.REWARD_FEEDBACK):
            lines.append(f"Reason: {shortened(str(text))}")
        elif span.name in (semconv.MESSAGE, semconv.OBSERVATION) and (note := span.attributes.get(semconv.CONTENT)):
            lines.append(f"Note: {shortened(str(note))}")
    lines += [f"Tool error: {text}" for text in _tool_errors(result.spans)]
    if result.failure is not None:
        lines.append(f"The agent failed: {shortened(result.failure.text)}")
    return "\n".join(lines)


def rendered(example: Mapping[str, Any], level: int = 3) -> str:
    """Return an example as text with a heading of this level for each part."""
    lines: list[str] = []
    for part, content in example.items():
        lines.append(f"{'#' * level} {part}")
        if isinstance(content, Mapping):
            for name, text in content.items():  # pyright: ignore[reportUnknownVariableType]  # texts by name
                lines.append(f"{name}: {text}")
        else:
            lines.append(str(content))
    return "\n".join(lines)


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text without its middle if it is too long."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters …] {text[-half:]}"


def _has(span: Span, name: str, component: PromptComponent) -> bool:
    """Whether a call has the component: the gateway replaced it there, or the call is of its agent and node."""
    edits = span.attributes.get(semconv.PROMPT_EDITS)
    if isinstance(edits, str) and any(edit.get("component") == name for edit in read_messages(edits)):
        return True
    found = span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.NODE)
    return found == (component.agent, component.node)


def _conversation(span: Span, component: PromptComponent | None) -> str:
    """Return the messages of a call and its answer, one a line, without the message of the component."""
    lines: list[str] = []
    seen: dict[str, int] = {}
    for message in read_messages(span.attributes.get(semconv.INPUT_MESSAGES)):
        role = str(message.get("role") or message.get("type") or "message")
        position = seen.get(role, 0)
        seen[role] = position + 1
        is_own = component is not None and (role, position) == (component.role, component.position)
        if is_own and role in ("system", "developer"):
            continue
        lines.append(f"{role}: {shortened(_content(message))}")
    lines.append(f"answer: {_answer(span)}")
    return "\n".join(lines)


def _answer(span: Span) -> str:
    messages = read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
    return shortened("\n".join(filter(None, (_content(message) for message in messages))))


def _content(message: Mapping[str, Any]) -> str:
    text = text_of(message.get("content")) or text_of(message.get("output"))
    calls = [f"calls {call.tool}({call.arguments or ''})" for call in tool_requests([dict(message)])]
    return "\n".join([*([text] if text else []), *calls])


def _tool_errors(spans: Sequence[Span]) -> Iterator[str]:
    shown: set[str] = set()
    for span in spans:
        tool = span.attributes.get(semconv.TOOL_NAME)
        if tool is None or span.status.code != "error":
            continue
        reason = span.status.description or span.attributes.get(semconv.ERROR_TYPE) or "it failed"
        text = f"{tool}: {shortened(str(reason), 500)}"
        if text not in shown:
            shown.add(text)
            yield text


def _final(spans: Sequence[Span]) -> str:
    for span in reversed(spans):
        if span.name == semconv.RESULT:
            found = span.attributes.get(semconv.FINAL_OUTPUT) or span.attributes.get(semconv.CONTENT)
            return "" if found is None else shortened(str(found))
    return ""


def _plain(task: object) -> str:
    return task if isinstance(task, str) else json.dumps(msgspec.to_builtins(task), ensure_ascii=False)
