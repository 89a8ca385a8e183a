"""Rollout tree: prints a rollout as a tree of agents, nodes, model calls, tools, rewards and errors.

Model calls show their tokens and policy version. Messages are shortened to one line. An error is shown in full where it
first occurs; spans that repeat it or that it propagates through show only its type.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.data import semconv
from leyden.core.data.failure import Failure, failure_of
from leyden.core.data.reasons import UPSTREAM
from leyden.core.data.span import Span
from leyden.core.errors import UnknownAgent
from leyden.core.masking import visible
from leyden.core.runner.attempts.error_text import user_stack, with_key_advice
from leyden.core.trainer.rollouts.recorded import RecordedRollout

if TYPE_CHECKING:
    from rich.tree import Tree

WIDTH = 72


def rollout_tree(recorded: RecordedRollout, stacks: set[str] | None = None) -> "Tree":
    """Return the tree for display, with one branch for each attempt.

    `stacks` holds the tracebacks of trees shown before, which are not shown again. The tree's own are added to it.
    """
    from rich.tree import Tree

    rollout = recorded.rollout
    root = Tree(f"[bold]{_safe(rollout.rollout_id)}[/]  {rollout.status}  {_safe(_short(rollout.input))}")
    for attempt, spans in recorded.attempts:
        note = "" if attempt.end_time is None else f"  {attempt.end_time - attempt.start_time:.2f} s"
        branch = root.add(f"attempt {attempt.sequence_id}  {attempt.status}{note}")
        shown = _Errors(stacks, trains=rollout.mode != "test")
        if (failure := failure_of(attempt)) is not None:
            branch.add(f"[red]{failure.kind} error:[/] {_safe(_of_attempt(failure, shown))}")
        if not spans:
            branch.add("[dim]no spans: the agent called no model and no framework was recorded[/]")
        _grow(branch, spans, shown)
    return root


class _Errors:
    """Error messages of one attempt that are already shown."""

    def __init__(self, stacks: set[str] | None = None, *, trains: bool = True) -> None:
        self.trains = trains
        """Whether the rollout was made to train on it."""
        self._shown: list[str] = []
        self._stacks = set[str]() if stacks is None else stacks

    def new_stack(self, span: Span) -> str:
        """Return the part of an exception's traceback that begins in the user's code; empty if it was shown before."""
        stack = user_stack(str(span.attributes.get(semconv.STACK_TRACE, "")))
        if span.name != semconv.EXCEPTION or stack in self._stacks:
            return ""
        self._stacks.add(stack)
        return stack

    def new(self, message: str) -> bool:
        """Record `message`; return whether it was not shown before, neither alone nor as part of a longer message."""
        if any(message in shown for shown in self._shown):
            return False
        self._shown.append(message)
        return True


def _of_attempt(failure: Failure, shown: _Errors) -> str:
    shown.new(_line(failure.message))
    text = _line(failure.message) if failure.type == UnknownAgent.__name__ else failure.text
    return with_key_advice(text)


def _safe(text: str) -> str:
    """Escape an agent's text so that rich prints it literally, without markup and control characters."""
    from rich.markup import escape

    return escape(visible(text))


def _grow(branch: "Tree", spans: Sequence[Span], shown: _Errors) -> None:
    known = {span.span_id for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=_order):
        children.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)

    def add(at: "Tree", parent: str | None) -> None:
        for span in children.get(parent, []):
            below = children.get(span.span_id, [])
            if len(below) == 1 and _is_call(below[0]) and span.attributes.get(semconv.OPERATION) in semconv.MODEL_CALLS:
                span = below[0]  # the framework's span of a call adds nothing to the gateway's record of it
            text = _safe(describe(span, shown))
            branch = at.add(f"[red]{text}[/]" if span.status.code == "error" else text)
            if stack := shown.new_stack(span):
                branch.add("\n".join(map(_safe, stack.splitlines())))
            add(branch, span.span_id)

    add(branch, None)


def _order(span: Span) -> tuple[bool, float, int]:
    """Sort key: by start time. Result and reward come last and are sorted by end time."""
    last = span.name in (semconv.RESULT, semconv.REWARD)
    return last, span.end_time or span.start_time if last else span.start_time, span.sequence_id


def _is_call(span: Span) -> bool:
    return semconv.CALL_ID in span.attributes


def describe(span: Span, shown: _Errors | None = None) -> str:
    """Return one line about a span. Its error is given in full, unless that message was already shown."""
    attributes = span.attributes
    text = _what(span, attributes, trains=shown is None or shown.trains)
    if span.end_time is not None and span.end_time > span.start_time:
        text += f"  {1000 * (span.end_time - span.start_time):,.0f} ms"
    if span.status.code == "error":
        text += f"  failed{_failed(span, shown or _Errors())}"
    return text


def _failed(span: Span, shown: _Errors) -> str:
    message, kind = _line(span.status.description or ""), str(span.attributes.get(semconv.ERROR_TYPE) or "")
    if message and shown.new(message):
        return f": {message}"
    return f": {kind}" if kind else ""


def _what(span: Span, attributes: Mapping[str, Any], *, trains: bool) -> str:
    if _is_call(span):
        return _call(attributes, has_failed=span.status.code == "error", trains=trains)
    if span.name == semconv.REWARD:
        parts = {
            key.removeprefix(semconv.REWARD_DIMENSION): value
            for key, value in attributes.items()
            if key.startswith(semconv.REWARD_DIMENSION)
        }
        named = "  (" + ", ".join(f"{name} {value:g}" for name, value in parts.items()) + ")" if parts else ""
        feedback = attributes.get(semconv.REWARD_FEEDBACK)
        said = f"  {_short(feedback)}" if feedback else ""
        return f"reward {attributes.get(semconv.REWARD_VALUE)}{named}{said}"
    if attributes.get(semconv.OPERATION) == "execute_tool":
        arguments, result = attributes.get(semconv.TOOL_ARGUMENTS, ""), attributes.get(semconv.TOOL_RESULT, "")
        return f"tool {attributes.get(semconv.TOOL_NAME, '?')}({_short(arguments)}) → {_short(result)}"
    for key in (semconv.CONTENT, semconv.FINAL_OUTPUT, semconv.RESULT):
        if key in attributes:
            return f"{span.name}  {_short(attributes[key])}"
    return span.name


def _call(attributes: Mapping[str, Any], *, has_failed: bool, trains: bool) -> str:
    parts = [str(attributes.get(semconv.OPERATION, "chat"))]
    counts = [attributes.get(name, "?") for name in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS)]
    reason = attributes.get(semconv.NOT_TRAINED)
    if counts != ["?", "?"] or not (has_failed or reason not in (None, UPSTREAM)):
        parts += [f"{counts[0]} → {counts[1]} tokens", _answered_by(attributes)]
    finished: Any = attributes.get(semconv.FINISH_REASONS) or []
    parts.append(", ".join(finished))
    if trains and reason is not None and not (has_failed and reason == UPSTREAM):
        parts.append(f"(not trained: {reason})")
    elif reason is not None and reason != UPSTREAM:
        parts.append(f"({reason})")
    answer = _answer(attributes.get(semconv.OUTPUT_MESSAGES))
    return "  ".join(part for part in [*parts, _short(answer)] if part)


def _answered_by(attributes: Mapping[str, Any]) -> str:
    """Return the policy and its versions; for an upstream, its model, and the requested model if that differs."""
    policy, version = attributes.get(semconv.POLICY), attributes.get(semconv.POLICY_VERSION)
    if policy is not None or version is not None:
        versions: Any = [] if version is None else attributes.get(semconv.POLICY_VERSIONS, [])[::2] or [version]
        return f"{policy or 'policy'} {' → '.join(f'v{number}' for number in versions)}".rstrip()
    requested, answered = attributes.get(semconv.REQUEST_MODEL), attributes.get(semconv.RESPONSE_MODEL)
    if not answered or answered == requested:
        return f"upstream {requested or ''}".rstrip()
    return f"upstream {answered} (asked for {requested})"


def _answer(messages: object) -> str:
    """Return the text and the tool calls of a model's recorded answer; empty if the JSON cannot be read."""
    try:
        found = msgspec.json.decode(messages, type=list[_Message]) if isinstance(messages, str | bytes) else []
    except msgspec.DecodeError:
        return ""
    contents = [message.content for message in found if message.content]
    called = [call.function for message in found for call in message.tool_calls or []]
    return " ".join([*contents, *(f"{call.name}({call.arguments})" for call in called)])


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


def _line(value: object) -> str:
    return " ".join(str(value).split())


def _short(value: object) -> str:
    text = _line(value)
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
