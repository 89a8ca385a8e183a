"""Brief forms of what the console shows: numbers in four digits, cut texts, sampled curves, and a rollout as text."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from leyden.console.plain import counted
from leyden.console.rollout_detail import AttemptView, SpanView

CURVES = 40
"""Most curves of a summary."""
POINTS = 10
"""Points of a curve in a summary, from the first step to the last."""
ITEMS = 60
"""Most entries of any list."""


def brief(value: Any, characters: int, items: int = ITEMS) -> Any:
    """Return a JSON value with long texts and lists cut, each with a note of how much was left out.

    Entries without a value are left out. Numbers have four digits; those from 100,000 on, such as times, all digits.
    """
    if isinstance(value, str):
        left = len(value) - characters
        return value if left <= 0 else f"{value[:characters]}… ({counted(left, 'more character')})"
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < 100_000 else round(value, 1)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return {name: brief(own, characters, items) for name, own in pairs if own is not None and own != ""}
    if isinstance(value, list | tuple):
        entries = cast("Sequence[Any]", value)
        shown = [brief(own, characters, items) for own in entries[:items]]
        return shown if len(entries) <= items else [*shown, f"… ({len(entries) - items:,} more)"]
    return value


def sampled(count: int, points: int = POINTS) -> list[int]:
    """Return indices from the first to the last of `count`, evenly spread."""
    if count <= points:
        return [*range(count)]
    return [round(at * (count - 1) / (points - 1)) for at in range(points)]


def curves(steps: Sequence[int], series: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """Return each series at some steps, with its lowest and highest value."""
    places = sampled(len(steps))
    shown = dict[str, Any]()
    for name, values in [*series.items()][:CURVES]:
        known = [value for value in values if value is not None]
        if known:
            shown[name] = {"at": [values[at] for at in places], "low": min(known), "high": max(known)}
    return {"steps": [steps[at] for at in places], "curves": shown, "curves_left_out": max(0, len(series) - CURVES)}


def rollout_text(found: Mapping[str, Any], characters: int, most: int) -> str:
    """Return a rollout as a tree in text: a line for each span, indented below its parent.

    A text of a span is cut after `characters`, and the whole after `most`.
    """
    rollout, outcome = found["rollout"], found["outcome"]
    became = "trained in " + ", ".join(outcome.steps) if outcome.trained else f"not trained: {outcome.reason}"
    lines = [
        f"rollout {rollout['id']} · {rollout['status']} · reward {found['reward']} · version {rollout['version']}",
        f"{became} {outcome.detail or outcome.means or ''}".rstrip(),
        f"input: {_line(rollout['input'], characters)}",
    ]
    for attempt in found["attempts"]:
        lines += _attempt(attempt, characters)
    text = "\n".join(lines)
    return text if len(text) <= most else f"{text[:most]}\n… ({counted(len(text) - most, 'more character')})"


def _attempt(attempt: AttemptView, characters: int) -> list[str]:
    failure = "" if attempt.failure is None else f" · {attempt.failure['message']}"
    children = dict[str | None, list[SpanView]]()
    known = {span.id for span in attempt.spans}
    for span in attempt.spans:
        children.setdefault(span.parent if span.parent in known else None, []).append(span)
    lines = [f"attempt {attempt.number} ({attempt.id}) · {attempt.status}{failure}"]

    def add(parent: str | None, depth: int) -> None:
        for span in children.get(parent, ()):
            lines.extend("  " * depth + line for line in _span(span, characters))
            add(span.id, depth + 1)

    add(None, 1)
    return lines


def _span(span: SpanView, characters: int) -> list[str]:
    seconds = "" if span.end is None else f" · {span.end - span.start:.2f} s"
    lines = [f"[{span.kind}] {span.title} · span {span.id}{seconds}"]
    if (call := span.model) is not None:
        became = ", ".join(call.steps) if call.trained else f"not trained: {call.reason}"
        lines.append(f"    {call.prompt_tokens} + {call.response_tokens} tokens · {call.finish} · {became}")
        lines.append(f"    answer: {_line(call.answer, characters)}")
        lines += [f"    calls {one.name}({_line(one.arguments, characters)})" for one in call.tool_calls]
    if (tool := span.tool) is not None:
        lines.append(f"    {tool.name}({_line(tool.arguments, characters)}) → {_line(tool.result, characters)}")
    if (reward := span.reward) is not None:
        lines.append(f"    reward {reward.value} {reward.dimensions or ''} {reward.feedback or ''}".rstrip())
    if span.error:
        lines.append(f"    error: {_line(span.error, characters)}")
    if span.text:
        lines.append(f"    {_line(span.text, characters)}")
    return lines


def _line(value: Any, characters: int) -> str:
    text = value if isinstance(value, str) else str(value)
    return str(brief(" ".join(text.split()), characters))
