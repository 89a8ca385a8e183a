"""Changes of runs, their metrics and their policy versions, as steps within one transaction.

Every function checks its arguments before it writes the first row.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from leyden.core.data.run import FINISHED_RUN, RUN_MOVES, PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.errors import CallRefused, IllegalMove, NotFound
from leyden.core.store.common.record_rows import (
    MetricsRow,
    RunRow,
    VersionKey,
    VersionRow,
    body_of,
    to_policy_version,
    to_run,
)
from leyden.core.store.common.rows import Changes, Rows, encode
from leyden.core.store.health_check import latest_heartbeat
from leyden.core.store.text import check_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST = 1 << 53
"""Steps and versions are below this, which every store can hold."""


def run_row(run: Run) -> RunRow:
    """Return the row of a run; raises CallRefused, a ValueError, or UsageError for an invalid id or status."""
    check_text(run_id=run.run_id, name=run.name, experiment=run.experiment)
    _check_name("a run's id", run.run_id)
    _check_status(run.status)
    return RunRow(
        run_id=run.run_id,
        name=run.name,
        experiment=run.experiment,
        status=run.status,
        config=encode(run.config, "the config of a run"),
        metadata=encode(run.metadata, "the metadata of a run"),
        start_time=run.start_time,
        end_time=run.end_time,
        update_time=0.0,
    )


def add_run(rows: Rows, row: RunRow) -> Run:
    """Store a run unless its id is stored already, and return the stored run."""
    old = rows.run(row.run_id)
    if old is None:
        start = row.start_time or rows.now
        end = row.end_time if row.end_time is not None or row.status not in FINISHED_RUN else max(start, rows.now)
        old = replace(row, start_time=start, end_time=end, update_time=rows.now)
        rows.insert_run(old)
    return to_run(old)


def update_run(rows: Rows, run_id: str, changes: Changes) -> Run:
    """Change fields and return the run. Raises NotFound, or IllegalMove for a status change that is not allowed."""
    row = _found(rows, run_id)
    status: RunStatus = changes.get("status", row.status)
    _check_status(status)
    if status != row.status:
        if status not in RUN_MOVES[row.status]:
            raise IllegalMove(f"run {run_id} is {row.status} and cannot become {status}")
        end = max(row.start_time, rows.now) if status in FINISHED_RUN else None
        changes = {**changes, "end_time": end}
    return to_run(_write(rows, replace(row, **changes)))


def rewind_run(rows: Rows, run_id: str, step: int) -> Run:
    """Remove the metrics and versions after a step and return the run."""
    row = _found(rows, run_id)
    rows.forget_after(run_id, step)
    return to_run(_write(rows, row))


def check_metrics(metrics: Sequence[StepMetrics]) -> None:
    """Raise CallRefused, a ValueError, for an invalid step or a number that is not finite."""
    for measured in metrics:
        _check_count("step", measured.step)
        _check_finite(measured.values, f"step {measured.step}")


def add_metrics(rows: Rows, run_id: str, metrics: Sequence[StepMetrics]) -> int:
    """Add values and notes to those of the stored steps; return the number of steps that changed."""
    run = _found(rows, run_id)
    stored = rows.metrics(run_id, list({measured.step for measured in metrics}))
    new = dict(stored)
    for measured in metrics:
        new[measured.step] = _added(new.get(measured.step), run_id, measured, rows.now)
    changed = {step: row for step, row in new.items() if row is not stored.get(step)}
    rows.insert_metrics([row for step, row in changed.items() if step not in stored])
    rows.replace_metrics([row for step, row in changed.items() if step in stored])
    if changed:
        _write(rows, run)
    return len(changed)


def _added(old: MetricsRow | None, run_id: str, new: StepMetrics, now: float) -> MetricsRow:
    """Return the row of a step with new metrics; the same object where nothing changes."""
    values, notes = ({}, {}) if old is None else body_of(old)
    all_values, all_notes = {**values, **new.values}, {**notes, **new.notes}
    if old is not None and (all_values, all_notes) == (values, notes):
        return old
    body = encode((all_values, all_notes), "the metrics of a run")
    return MetricsRow(run_id=run_id, step=new.step, time=new.time or now, body=body)


def version_row(version: PolicyVersion) -> VersionRow:
    """Return the row of a version; raises CallRefused, a ValueError, for an invalid name or number."""
    check_text(run_id=version.run_id, policy=version.policy, path=version.path, note=version.note)
    _check_name("a policy's name", version.policy)
    _check_count("version", version.version)
    if version.parent is not None:
        _check_count("parent", version.parent)
    return VersionRow(
        run_id=version.run_id,
        policy=version.policy,
        version=version.version,
        parent=version.parent,
        path=version.path,
        note=version.note,
        metrics=encoded_metrics(version.metrics, version.version),
        metadata=encode(version.metadata, "the metadata of a version"),
        create_time=version.create_time,
        update_time=0.0,
    )


def encoded_metrics(metrics: Mapping[str, float], version: int) -> bytes:
    """Return the metrics of a version as bytes; raises CallRefused for a number that is not finite."""
    _check_finite(metrics, f"version {version}")
    return encode(metrics, "the metrics of a version")


def add_policy_versions(rows: Rows, new: Sequence[VersionRow]) -> list[PolicyVersion]:
    """Store the versions that are not stored already, and return the stored ones. Raises NotFound for a missing run."""
    runs = {run_id: _found(rows, run_id) for run_id in sorted({row.run_id for row in new})}
    stored: dict[VersionKey, VersionRow] = {}
    written: set[str] = set()
    for row in new:
        key = (row.run_id, row.policy, row.version)
        old = stored.get(key) or rows.policy_version(key)
        if old is None:
            old = replace(row, create_time=row.create_time or rows.now, update_time=rows.now)
            rows.insert_policy_version(old)
            written.add(row.run_id)
        stored[key] = old
    for run_id in sorted(written):
        _write(rows, runs[run_id])
    return [to_policy_version(stored[row.run_id, row.policy, row.version]) for row in new]


def update_policy_version(rows: Rows, key: VersionKey, changes: Changes) -> PolicyVersion:
    """Change fields of a version and return it. Raises NotFound."""
    run_id, policy, version = key
    run = _found(rows, run_id)
    row = rows.policy_version(key)
    if row is None:
        raise NotFound(f"there is no version {version} of policy {policy} of run {run_id}")
    row = replace(row, **changes, update_time=latest_heartbeat(row.update_time, rows.now))
    rows.replace_policy_version(row)
    _write(rows, run)
    return to_policy_version(row)


def _found(rows: Rows, run_id: str) -> RunRow:
    row = rows.run(run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}")
    return row


def _write(rows: Rows, row: RunRow) -> RunRow:
    """Write a run's row with a new update time, after a change of the run."""
    row = replace(row, update_time=latest_heartbeat(row.update_time, rows.now))
    rows.replace_run(row)
    return row


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise CallRefused(f"{name[:200]!r} cannot be {what}: it must match {_NAME.pattern}")


def _check_status(status: Any) -> None:
    if status not in RUN_MOVES:
        raise CallRefused(f"{status!r} is not a run's status; use one of {', '.join(RUN_MOVES)}")


def _check_count(what: str, number: int) -> None:
    if not 0 <= number < _MOST:
        raise CallRefused(f"{what} is {number}; it must be at least 0, and below 2^53")


def _check_finite(values: Mapping[str, float], where: str) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise CallRefused(f"{name} of {where} is {value}; leave out numbers that are not finite")
