"""Bottlenecks: where the seconds of a run went, by phase, by step and inside its rollouts, and what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from leyden.console.runs.metrics_file import Line, number
from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.trajectory.calls import is_recorded_call

SERIES = ("seconds_rollouts", "seconds_trainer_idle", "seconds_engine_idle", "seconds")
OTHER = "other"
"""Name of the time of a run that belongs to no phase."""
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


def phases(report: Mapping[str, Any] | None) -> list[Share]:
    """Return the phases of a run as shares of its whole time; what belongs to none of them is a part of its own."""
    if report is None or not report.get("seconds_by_phase"):
        return []
    seconds: dict[str, float] = dict(report["seconds_by_phase"])
    other = report.get("seconds", 0.0) - sum(seconds.values())
    return shares({**seconds, OTHER: other} if other > 0 else seconds)


def step_seconds(lines: Sequence[Line]) -> StepSeconds:
    """Return the seconds of each step."""
    steps = [line for line in lines if "seconds" in line and "held_out" not in line]
    series: dict[str, list[float | None]] = {
        name.removeprefix("seconds_"): [number(line.get(name)) for line in steps] for name in SERIES
    }
    # rollouts of an overlapping loop go on during the rest of the step, so their own time says nothing about it
    waited = [
        idle if idle is not None else own for idle, own in zip(series["trainer_idle"], series["rollouts"], strict=True)
    ]
    series["rest of the step"] = [
        None if whole is None else max(0.0, whole - (own or 0.0))
        for own, whole in zip(waited, series["seconds"], strict=True)
    ]
    known = {name: own for name, own in series.items() if any(value is not None for value in own)}
    return StepSeconds(steps=[int(line["step"]) for line in steps], series=known)


def inside(rollouts: Sequence[tuple[Rollout, Sequence[Span]]]) -> list[Share]:
    """Return what rollouts spent their time on; each is given with the spans of its last attempt.

    Times of model calls and tools are unions of their intervals, so parallel calls of one rollout count once. A model
    call inside a tool counts as a model call.
    """
    seconds = {"model calls": 0.0, "tools": 0.0, "agent code": 0.0, "waiting in queue": 0.0}
    for rollout, spans in rollouts:
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        if not spans or attempt is None or attempt.end_time is None:
            continue
        calls = [span for span in spans if is_recorded_call(span)]
        tools = [span for span in spans if span.attributes.get(semconv.OPERATION) == "execute_tool"]
        model, either = _union(calls), _union([*calls, *tools])
        seconds["model calls"] += model
        seconds["tools"] += either - model
        seconds["agent code"] += max(0.0, attempt.end_time - attempt.start_time - either)
        if attempt.sequence_id == 1:
            seconds["waiting in queue"] += max(0.0, attempt.start_time - rollout.start_time)
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
        "evaluations take {share} of the run's time",
    ),
    _Rule(
        "checkpoint",
        0.1,
        "write checkpoints less often (--checkpoint-every)",
        "checkpoints take {share} of the run's time",
    ),
    _Rule(
        "update",
        0.5,
        "compute updates in bfloat16 (--set precision=bfloat16), or train adapters (--set lora.rank=16)",
        "updates take {share} of the run's time",
    ),
    _Rule(
        "tools",
        0.3,
        "tools are slow: more workers (--workers) run them side by side",
        "tools take {share} of a rollout's time",
    ),
    _Rule(
        "agent code",
        0.4,
        "the agent's own code takes long: more workers (--workers) run it in more processes",
        "code between calls takes {share} of a rollout's time",
    ),
    _Rule(
        "waiting in queue",
        0.5,
        "rollouts wait for a place: raise --concurrency or --workers",
        "waiting takes {share} of a rollout's time",
    ),
)


_OVERLAP = (
    "the engine waits for the trainer: let both work at once (--set loop=one_off or loop=async, docs/loops.md), if "
    "engine and trainer have hardware of their own"
)
_SLOW_TRAINER = (
    "the engine waits for the trainer although both work at once: make updates cheaper (--set precision=bfloat16, "
    "--set lora.rank=16), or give the trainer faster hardware"
)
_SLOW_ROLLOUTS = (
    "the trainer waits for rollouts although both work at once: raise --concurrency or --workers if the engine has "
    "capacity left"
)


def loop_of(config: Mapping[str, Any]) -> str | None:
    """Return how collecting and updating alternate in a run with this configuration; None if that cannot be chosen."""
    vllm: Mapping[str, Any] = config.get("vllm") or {}
    settings: Mapping[str, Any] = config.get("algorithm_config") or {}
    if config.get("algorithm") != "lightning_rl" or vllm.get("sleep"):
        return None
    return str(settings.get("loop", "sync"))


def findings_of(
    parts_of_run: Sequence[Share],
    seconds: StepSeconds,
    parts_of_rollout: Sequence[Share],
    lines: Sequence[Line],
    loop: str | None = None,
) -> list[Finding]:
    """Return what would help, each with its figure; nothing where the figures say nothing.

    `loop` is how the run's collecting and updating alternate; None if that cannot be chosen in such a run.
    """
    known = {one.name: one.share for one in (*parts_of_run, *parts_of_rollout)}
    found = [
        Finding(text=rule.text, figure=rule.figure.format(share=f"{known[rule.part]:.0%}"))
        for rule in _RULES
        if known.get(rule.part, 0.0) > rule.most
    ]
    engine, trainer = _share_of_steps(seconds, "engine_idle"), _share_of_steps(seconds, "trainer_idle")
    if loop is not None and engine > 0.3:
        text = _OVERLAP if loop == "sync" else _SLOW_TRAINER
        found.append(Finding(text=text, figure=f"no rollout is in flight for {engine:.0%} of the time of the steps"))
    if loop in ("one_off", "async") and trainer > 0.3:
        figure = f"the trainer waits for {trainer:.0%} of the time of the steps"
        found.append(Finding(text=_SLOW_ROLLOUTS, figure=figure))
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


def _share_of_steps(seconds: StepSeconds, name: str) -> float:
    """Return the share of a series in the seconds of the steps that have it; 0 without such a step."""
    whole = seconds.series.get("seconds", ())
    known = [(own, of) for own, of in zip(seconds.series.get(name, ()), whole, strict=False) if own is not None and of]
    return sum(own for own, _ in known) / sum(of for _, of in known) if known else 0.0


def _share_without_spread(lines: Sequence[Line]) -> float | None:
    known = [line for line in lines if "groups" in line and "groups_with_spread" in line]
    groups = sum(number(line["groups"]) or 0.0 for line in known)
    return 1 - sum(number(line["groups_with_spread"]) or 0.0 for line in known) / groups if groups else None
