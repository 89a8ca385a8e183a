"""Health of a run: first whether it still works, then what its metrics say, then advice.

Advice about tuning is worth nothing while the run does not move, so it is given only if every sign of life is good.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

import msgspec

from leyden.console.plain import counted
from leyden.console.rollout_index import RolloutIndex, Row
from leyden.console.runs.metrics_file import Line, number
from leyden.console.runs.run import RunItem
from leyden.core.data.rollout import FINISHED_ROLLOUT
from leyden.core.trainer.run_folder.report import RaisedAlert

Level = Literal["alarm", "warning", "ok", "unknown"]
"""How a sign or a signal is. An alarm means that the run does not work; an alert (docs/alerts.md) is about training."""
RECENT = 5
"""Steps over which a signal is computed."""
LATE = 5
"""A step that takes so many times as long as the usual one is late."""
LEAST_WAIT = 60.0
"""Seconds that a step may take before it can be late."""


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life."""

    name: str
    level: Level
    message: str
    since: float | None = None


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """What recent steps or rollouts say; `series` is the curve that shows it."""

    name: str
    level: Level
    value: float | None
    text: str
    series: str | None = None
    advice: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of life, alerts and signals."""

    liveness: list[Sign]
    alerts: list[RaisedAlert]
    signals: list[Signal]


def health_of(item: RunItem, lines: Sequence[Line], index: RolloutIndex, now: float | None = None) -> Health:
    """Return the health of a run from its metrics and its rollouts."""
    now, rows = time.time() if now is None else now, list(index.rows.values())
    steps = [line for line in lines if "held_out" not in line and "alert" not in line and "step" in line]
    liveness = [_process(item), _progress(item, steps, index, now), _rollouts(rows)]
    is_alive = all(sign.level != "alarm" for sign in liveness)
    signals = [signal for signal in _signals(steps[-RECENT:], rows) if signal is not None]
    if not is_alive:
        signals = [msgspec.structs.replace(signal, advice="") for signal in signals]
    return Health(liveness=liveness, alerts=_alerts(item, lines), signals=signals)


def _process(item: RunItem) -> Sign:
    name = "process"
    if item.state == "running":
        return Sign(name=name, level="ok", message="a process trains the run")
    if item.state == "finished":
        return Sign(name=name, level="ok", message="the run has finished" + (f": {item.error}" if item.error else ""))
    why = f": {item.error}" if item.error else ": no process trains it now"
    state = {"failed": "has failed", "ended before its first step": item.state}.get(item.state, f"is {item.state}")
    level: Level = "warning" if item.state == "stopped" else "alarm"
    return Sign(name=name, level=level, message=f"the run {state}{why}", since=item.ended)


def _progress(item: RunItem, steps: Sequence[Line], index: RolloutIndex, now: float) -> Sign:
    """Return whether a running run moves: it writes a record, or one of its rollouts begins, calls or ends."""
    name = "progress"
    if item.state != "running":
        taken = f"{counted(item.step, 'step')} {'was' if item.step == 1 else 'were'} taken"
        return Sign(name=name, level="ok", message=taken)
    seconds = _numbers(steps, "seconds")
    open_tasks = sum(bool(row.set) and row.status not in FINISHED_ROLLOUT for row in index.rows.values())
    evaluation = f"; an evaluation has {counted(open_tasks, 'rollout')} to go" if open_tasks else ""
    if not seconds or item.updated is None:
        message = f"no step has ended yet{evaluation}"
        return Sign(name=name, level="unknown", message=message, since=item.began)
    usual = median(seconds[-RECENT:])
    message = f"the last record is {now - item.updated:,.0f} s old; a step usually takes {usual:,.0f} s{evaluation}"
    last = item.updated
    if index.active is not None and index.active > last:
        last = index.active
        message += f"; the last activity of a rollout is {max(0.0, now - last):,.0f} s old"
    if now - last <= max(LEAST_WAIT, LATE * usual):
        return Sign(name=name, level="ok", message=message)
    if not index.is_read:
        return Sign(name=name, level="unknown", message=f"{message}; its rollouts have not been read")
    if item.steps is not None and item.step >= item.steps:  # what follows takes longer than a step
        return Sign(name=name, level="unknown", message=f"{message}; all steps were taken", since=last)
    return Sign(name=name, level="alarm", message=message, since=last)


def _rollouts(rows: Sequence[Row]) -> Sign:
    name = "rollouts"
    recent = [row for row in rows if row.status in ("succeeded", "failed")][-100:]
    if not recent:
        return Sign(name=name, level="unknown", message=f"no rollout has {'ended' if rows else 'been read'}")
    failed = [row for row in recent if row.status == "failed"]
    share = len(failed) / len(recent)
    message = f"{len(failed)} of the last {counted(len(recent), 'rollout')} failed"
    if failed:
        message += f"; the last one: {failed[-1].error}"
    level: Level = "alarm" if share > 0.5 else "warning" if share > 0.1 else "ok"
    return Sign(name=name, level=level, message=message)


def _alerts(item: RunItem, lines: Sequence[Line]) -> list[RaisedAlert]:
    if item.alerts:
        return item.alerts
    return [
        RaisedAlert(name=str(line["alert"]), since=int(line["step"]), message=str(line.get("message", "")))
        for line in lines
        if "alert" in line
    ]


def _signals(steps: Sequence[Line], rows: Sequence[Row]) -> list[Signal | None]:
    return [
        _zero_variance(steps),
        _trend(steps, "entropy", "entropy", "nats of entropy at a token"),
        _trend(steps, "reward drift", "reward", "mean reward"),
        _truncated(rows),
        _aborted(rows),
        _ids(rows),
    ]


def _zero_variance(steps: Sequence[Line]) -> Signal | None:
    with_spread, groups = _sum(steps, "groups_with_spread"), _sum(steps, "groups")
    if not groups or with_spread is None:
        return None
    share, recent = 1 - with_spread / groups, counted(len(steps), "step")
    return Signal(
        name="zero-variance groups",
        level="warning" if share > 0.8 else "ok",
        value=share,
        text=f"{share:.0%} of the groups of the last {recent} had equal rewards, and taught nothing",
        series="groups_with_spread",
        advice="take other tasks, or raise --group-size" if share > 0.8 else "",
    )


def _trend(steps: Sequence[Line], name: str, key: str, unit: str) -> Signal | None:
    values = _numbers(steps, key)
    if not values:
        return None
    text = f"{values[-1]:.3g} {unit}"
    if len(values) > 1:
        text += f" ({counted(len(values) - 1, 'step')} before: {values[0]:.3g})"
    return Signal(name=name, level="ok", value=values[-1], text=text, series=key)


def _truncated(rows: Sequence[Row]) -> Signal | None:
    recent = [row for row in rows if row.calls][-500:]
    calls = sum(row.calls for row in recent)
    if not calls:
        return None
    share = sum(row.truncated for row in recent) / calls
    return Signal(
        name="truncation",
        level="warning" if share > 0.2 else "ok",
        value=share,
        text=f"{share:.0%} of the last {counted(calls, 'call')} ended at the limit of tokens",
        advice="raise --max-tokens, or the agent's own limit" if share > 0.2 else "",
    )


def _aborted(rows: Sequence[Row]) -> Signal | None:
    recent = [row for row in rows if row.status in ("succeeded", "failed", "cancelled")][-500:]
    if not recent:
        return None
    share = sum(row.status != "succeeded" for row in recent) / len(recent)
    return Signal(
        name="failed rollouts",
        level="warning" if share > 0.1 else "ok",
        value=share,
        text=f"{share:.0%} of the last {counted(len(recent), 'rollout')} failed or were cancelled",
        advice="read one of them" if share > 0.1 else "",
    )


def _ids(rows: Sequence[Row]) -> Signal | None:
    recent = [row for row in rows if row.status == "succeeded"][-500:]
    if not recent:
        return None
    without = sum(not row.calls for row in recent)
    return Signal(
        name="rollouts without a recorded call",
        level="warning" if without else "ok",
        value=without / len(recent),
        text=f"{without} of the last {counted(len(recent), 'succeeded rollout')} had no recorded model call",
        advice="an agent that calls its provider past Leyden cannot be trained: see docs/wire.md" if without else "",
    )


def _sum(steps: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _numbers(steps, key)
    return sum(values) if values else None


def _numbers(steps: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for line in steps if (value := number(line.get(key))) is not None]
