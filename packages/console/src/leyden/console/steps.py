"""Steps of a run as columns: the numbers of every step by name, evaluations and alerts."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from leyden.console.runs.metrics_file import Line, MetricsLines, number

RATIO = ("mean", "p01", "p50", "p99", "effective_share")
"""Parts of the distribution of a ratio; its maximum, which hides them on a common axis, has a curve of its own."""
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("reward", "reward_std")),
    ("Groups", ("groups", "groups_with_spread")),
    ("Tokens", ("response_tokens_mean", "tokens_trained", "tokens_read", "tokens_per_second")),
    ("Policy", ("entropy", "approx_kl", "clip_fraction", "reference_kl")),
    ("Update", ("loss", "grad_norm", "learning_rate")),
    ("Served and trained", ("served_trained_gap", "importance_ratio_deviation", "mismatch_kl", "corrected_fraction")),
    ("Staleness", ("staleness_mean", "staleness_max", "mixed_version_share")),
    ("Critic", ("value_loss", "value_explained_variance", "value_mean", "value_target_mean")),
    ("Seconds", ("seconds", "seconds_rollouts", "seconds_trainer_idle", "seconds_engine_idle")),
)
"""Metrics that belong on one curve, by title; these curves come first."""
OTHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Ratio to the policy before the update", tuple(f"ratio_{name}" for name in RATIO)),
    ("Ratio to the policy that sampled", tuple(f"mismatch_ratio_{name}" for name in RATIO)),
    (
        "Model calls",
        ("transitions", *(f"transitions_{name}" for name in ("trained", "skipped", "uncredited", "unvalued"))),
    ),
    ("Optimizer steps", ("optimizer_steps", "optimizer_steps_masked")),
)
"""Metrics that belong on one curve, but are seldom needed. All others have a curve each, beside these."""
LEFT_OUT = ("rollouts_left_out/", "calls_left_out/")
"""Beginnings of metrics that count what a step has left out for a reason; a step names only those that it had."""


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Mean reward of a version on a held-out set."""

    step: int
    set: str
    kind: Literal["own", "sampled"]
    """Whether the agent's own sampling applied, or that of training."""
    success: float | None
    side: str | None = None


class StepAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert and the step at which it began."""

    step: int
    name: str
    message: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Series that belong on one curve."""

    title: str
    series: list[str]
    folded: bool = False
    """Whether it is seldom needed, so that a page shows it when the reader opens the other series."""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps as columns. `lines` is the number of lines read, from which the next request continues."""

    generation: str
    lines: int
    steps: list[int]
    series: dict[str, list[float | None]]
    held_out: list[Evaluated]
    alerts: list[StepAlert]
    groups: list[Group]


def steps_of(metrics: MetricsLines, after: int = 0, generation: str | None = None) -> Steps:
    """Return the steps from line `after` on; from the first, if the caller has read another generation."""
    start = after if generation == metrics.generation and 0 <= after <= len(metrics.lines) else 0
    lines = metrics.lines[start:]
    steps = [line for line in lines if "held_out" not in line and "alert" not in line]
    names = dict.fromkeys(name for line in steps for name, value in line.items() if number(value) is not None)
    names.pop("step", None)
    every = dict.fromkeys(name for line in metrics.lines if "alert" not in line for name in line)
    return Steps(
        generation=metrics.generation,
        lines=len(metrics.lines),
        steps=[int(line["step"]) for line in steps],
        series={name: [number(line.get(name, _without(name))) for line in steps] for name in names},
        held_out=[one for line in lines if "held_out" in line for one in _evaluated(line)],
        alerts=[
            StepAlert(step=int(line["step"]), name=str(line["alert"]), message=str(line.get("message", "")))
            for line in lines
            if "alert" in line
        ],
        groups=grouped(every),
    )


def grouped(names: Iterable[str]) -> list[Group]:
    """Return which of the series belong on one curve; those of several policies are told apart by their prefix."""
    known = list(names)
    left_out = [name for name in known if name.startswith(LEFT_OUT)]
    found = [
        *(Group(title=title, series=_members(known, members)) for title, members in GROUPS),
        Group(title="Left out", series=left_out),
        *(Group(title=title, series=_members(known, members), folded=True) for title, members in OTHERS),
    ]
    return [group for group in found if group.series]


def _members(known: Sequence[str], members: Sequence[str]) -> list[str]:
    return [name for name in known if name in members or name.rpartition("/")[2] in members]


def _evaluated(line: Line) -> Sequence[Evaluated]:
    kind: Literal["own", "sampled"] = "own" if "success" in line else "sampled"
    success: Any = line.get("success", line.get("sampled"))
    step, name = int(line["step"]), str(line["held_out"])
    sides: dict[str, Any] = line.get("sides") or {}
    if sides:
        return [
            Evaluated(step=step, set=name, kind=kind, success=number(own), side=side) for side, own in sides.items()
        ]
    return [Evaluated(step=step, set=name, kind=kind, success=number(success))]


def _without(name: str) -> int | None:
    """Return the value of a metric in a step that does not have it; None if that is not known."""
    return 0 if name.startswith(LEFT_OUT) else None
