"""Bottlenecks: where the seconds of a run went, by phase, by step and inside its rollouts, and what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from leyden.console.runs.metrics_file import Line
from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.trajectory.calls import is_recorded_call

SERIES = ("seconds_rollouts", "seconds_trainer_idle", "seconds_engine_idle", "seconds")
SAMPLE = 50
"""Rollouts whose spans are read, the newest first."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a time."""

    name: str
    seconds: float
    share: float


class StepSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each step by what they were spent on."""

    steps: list[int]
    series: dict[str, list[float | None]]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What would make the run faster, and the figure that says so."""

    text: str
    figure: str


class Bottlenecks(msgspec.Struct, frozen=True, kw_only=True):
    """Where the seconds of a run went."""

    phases: list[Share]
    steps: StepSeconds
    inside: list[Share]
    """What rollouts spent their time on, added up over concurrent rollouts."""
    sampled: int
    """Number of rollouts that `inside` was computed from."""
    findings: list[Finding]


def shares(seconds: Mapping[str, float]) -> list[Share]:
    """Return the parts of a time, the largest first."""
    total = sum(seconds.values())
    found = [Share(name=name, seconds=own, share=own / total if total else 0.0) for name, own in seconds.items()]
    return sorted(found, key=lambda one: -one.seconds)


def step_seconds(lines: Sequence[Line]) -> StepSeconds:
    """Return the seconds of each step."""
    steps = [line for line in lines if "seconds" in line and "held_out" not in line]
    series: dict[str, list[float | None]] = {
        name.removeprefix("seconds_"): [_number(line.get(name)) for line in steps] for name in SERIES
    }
    rollouts, total = series["rollouts"], series["seconds"]
    series["rest of the step"] = [
        None if whole is None else max(0.0, whole - (own or 0.0)) for own, whole in zip(rollouts, total, strict=True)
    ]
    known = {name: own for name, own in series.items() if any(value is not None for value in own)}
    return StepSeconds(steps=[int(line["step"]) for line in steps], series=known)


def inside(rollouts: Sequence[tuple[float | None, Sequence[Span]]]) -> list[Share]:
    """Return what rollouts spent their time on; each is given as its duration from queue to end, and its spans.

    Times of model calls and tools are unions of their intervals, so parallel calls of one rollout count once.
    """
    seconds = {"model calls": 0.0, "tools": 0.0, "agent code": 0.0, "waiting in queue": 0.0}
    for duration, spans in rollouts:
        if not spans:
            continue
        whole = _union([span for span in spans if span.end_time is not None])
        model = _union([span for span in spans if is_recorded_call(span)])
        tools = _union([span for span in spans if span.attributes.get(semconv.OPERATION) == "execute_tool"])
        seconds["model calls"] += model
        seconds["tools"] += tools
        seconds["agent code"] += max(0.0, whole - model - tools)
        seconds["waiting in queue"] += max(0.0, (duration or whole) - whole)
    return shares(seconds) if any(seconds.values()) else []


@dataclass(frozen=True, slots=True)
class _Rule:
    """Advice for a part that takes more than `most` of a time."""

    part: str
    most: float
    text: str
    figure: str
    """Sentence about the part's share."""


_RULES = (
    _Rule(
        "evaluate",
        0.3,
        "evaluate less often (--eval-every), on fewer tasks, or without the training sampling (--no-sampled-eval)",
        "evaluations take {share} of the time",
    ),
    _Rule(
        "checkpoint", 0.1, "write checkpoints less often (--checkpoint-every)", "checkpoints take {share} of the time"
    ),
    _Rule(
        "update",
        0.5,
        "compute updates in bfloat16 (--set precision=bfloat16), or train adapters (--set lora.rank=16)",
        "updates take {share} of the time",
    ),
    _Rule(
        "tools",
        0.3,
        "tools are slow: more workers (--workers) run them side by side",
        "tools take {share} of a rollout",
    ),
    _Rule(
        "agent code",
        0.4,
        "the agent's own code takes long: more workers (--workers) run it in more processes",
        "code between calls takes {share} of a rollout",
    ),
    _Rule(
        "waiting in queue",
        0.5,
        "rollouts wait for a place: raise --concurrency or --workers",
        "waiting takes {share} of a rollout's time",
    ),
)


def findings_of(
    phases: Sequence[Share], seconds: StepSeconds, parts: Sequence[Share], lines: Sequence[Line]
) -> list[Finding]:
    """Return what would help, each with its figure; nothing where the figures say nothing."""
    known = {one.name: one.share for one in (*phases, *parts)}
    found = [
        Finding(text=rule.text, figure=rule.figure.format(share=f"{known[rule.part]:.0%}"))
        for rule in _RULES
        if known.get(rule.part, 0.0) > rule.most
    ]
    idle, total = _sum(seconds, "engine_idle"), _sum(seconds, "rollouts")
    if total and idle / total > 0.3:
        figure = f"the engine is idle for {idle / total:.0%} of the time of rollouts"
        found.append(Finding(text="the engine waits for the agents: raise --concurrency or --workers", figure=figure))
    spread = _share_without_spread(lines)
    if spread is not None and spread > 0.5:
        text = "most groups teach nothing: other tasks would use the same time better"
        found.append(Finding(text=text, figure=f"{spread:.0%} of the groups had equal rewards"))
    return found


def _union(spans: Sequence[Span]) -> float:
    """Return the seconds that at least one of the spans covers."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((span.start_time, span.end_time or span.start_time) for span in spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _sum(seconds: StepSeconds, name: str) -> float:
    return sum(value or 0.0 for value in seconds.series.get(name, ()))


def _share_without_spread(lines: Sequence[Line]) -> float | None:
    groups = sum(float(line["groups"]) for line in lines if "groups" in line)
    spread = sum(
        float(line["groups_with_spread"]) for line in lines if "groups" in line and "groups_with_spread" in line
    )
    return 1 - spread / groups if groups else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
