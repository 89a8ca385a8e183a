"""`LocalRunRecords`: runs, the metrics of their steps and the versions of their policies, on top of transactions.

Every method checks its arguments, and encodes them, before its transaction begins.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from leyden.core.data.page import Page
from leyden.core.data.route import POLICY
from leyden.core.data.run import FINISHED_RUN, RUN_MOVES, PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.errors import CallRefused, IllegalMove, NotFound
from leyden.core.store.arguments import UNSET, FilterLogic, SortOrder, Unset, given, not_none
from leyden.core.store.common.reading import ReadingStore
from leyden.core.store.common.rows import Changes, Rows, encode
from leyden.core.store.common.run_record_rows import (
    RecordKey,
    RunRow,
    StepRow,
    VersionRow,
    body_of,
    fields_of,
    to_metrics,
    to_policy_version,
    to_run,
)
from leyden.core.store.health_check import latest_heartbeat
from leyden.core.store.query import Query, check, conditions
from leyden.core.store.text import check_text

T = TypeVar("T")

RUN_SORTS = frozenset({"run_id", "name", "experiment", "status", "start_time", "end_time", "update_time"})
VERSION_SORTS = frozenset({"run_id", "policy", "version", "parent", "path", "note", "create_time", "update_time"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST = 1 << 53
"""Steps and versions are below this, which every store can hold."""


class LocalRunRecords(ReadingStore):
    """The part of `LocalStore` that keeps records of runs."""

    @abstractmethod
    async def _write(self, work: Callable[[Rows], T]) -> T:
        """Run `work` in a transaction, commit it, and return the result."""

    async def add_run(self, run: Run) -> Run:
        """Store a run."""
        check_text(run_id=run.run_id, name=run.name, experiment=run.experiment)
        _check_name("a run's id", run.run_id)
        _check_status(run.status)
        config = encode(run.config, "the config of a run")
        metadata = encode(run.metadata, "the metadata of a run")
        new = RunRow(**fields_of(run, config=config, metadata=metadata))

        def work(rows: Rows) -> Run:
            row = _stored(rows, new.run_id)
            if row is None:
                start, end = new.start_time or rows.now, new.end_time
                if end is None and new.status in FINISHED_RUN:
                    end = max(start, rows.now)
                row = replace(new, start_time=start, end_time=end, update_time=rows.now)
                rows.insert_records([row])
            return to_run(row)

        return await self._write(work)

    async def update_run(
        self,
        run_id: str,
        name: str | Unset = UNSET,
        experiment: str | Unset | None = UNSET,
        status: RunStatus | Unset = UNSET,
        config: dict[str, Any] | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Run:
        """Change fields of a run."""
        check_text(run_id=run_id, name=name, experiment=experiment)
        changes = given(experiment=experiment, **not_none(name=name, status=status, config=config))
        if "config" in changes:
            changes["config"] = encode(config, "the config of a run")
        if metadata is not UNSET:
            changes["metadata"] = encode(metadata or {}, "the metadata of a run")

        def work(rows: Rows) -> Run:
            row = _found(rows, run_id)
            return to_run(_write_run(rows, replace(row, **changes, **_ended(row, changes, rows.now))))

        return await self._write(work)

    async def rewind_run(self, run_id: str, step: int) -> Run:
        """Remove the metrics and versions after a step."""
        check_text(run_id=run_id)

        def work(rows: Rows) -> Run:
            row = _found(rows, run_id)
            rows.forget_after(run_id, step)
            return to_run(_write_run(rows, row))

        return await self._write(work)

    async def query_runs(
        self,
        *,
        status_in: Sequence[RunStatus] | None = None,
        run_id_in: Sequence[str] | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        experiment: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[Run]:
        """Return runs."""
        query = runs_query(
            status_in, run_id_in, name, name_contains, experiment, filter_logic, sort_by, sort_order, limit, offset
        )
        return await self._read(lambda rows: query.page(rows.select_records(RunRow, query), to_run))

    async def get_run_by_id(self, run_id: str) -> Run | None:
        """Return one run."""
        check_text(run_id=run_id)

        def work(rows: Rows) -> Run | None:
            row = _stored(rows, run_id)
            return None if row is None else to_run(row)

        return await self._read(work)

    async def add_metrics(self, run_id: str, metrics: Sequence[StepMetrics]) -> int:
        """Add metrics of steps."""
        check_text(run_id=run_id)
        for measured in metrics:
            _check_count("step", measured.step)
            _check_finite(measured.values, f"step {measured.step}")

        def work(rows: Rows) -> int:
            run = _found(rows, run_id)
            stored = rows.records(StepRow, list(dict.fromkeys((run_id, measured.step) for measured in metrics)))
            new = dict(stored)
            for measured in metrics:
                key = run_id, measured.step
                new[key] = _added(new.get(key), run_id, measured, rows.now)
            changed = {key: row for key, row in new.items() if row is not stored.get(key)}
            rows.insert_records([row for key, row in changed.items() if key not in stored])
            rows.replace_records([row for key, row in changed.items() if key in stored])
            if changed:
                _write_run(rows, run)
            return len(changed)

        return await self._write(work)

    async def query_metrics(
        self, run_id: str, *, sort_order: SortOrder = "asc", limit: int = -1, offset: int = 0
    ) -> Page[StepMetrics]:
        """Return metrics by step."""
        query = Query(within={"run_id": run_id}, sort_by="step", order=sort_order, limit=limit, offset=offset)
        check(query, frozenset({"step"}))
        return await self._read(lambda rows: query.page(rows.select_records(StepRow, query), to_metrics))

    async def add_policy_versions(self, versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        """Store versions."""
        new = version_rows(versions)

        def work(rows: Rows) -> list[PolicyVersion]:
            runs = {run_id: _found(rows, run_id) for run_id in sorted({row.run_id for row in new})}
            stored = rows.records(VersionRow, list(dict.fromkeys(row.key for row in new)))
            added: dict[RecordKey, VersionRow] = {}
            for row in new:
                if row.key not in stored and row.key not in added:
                    added[row.key] = replace(row, create_time=row.create_time or rows.now, update_time=rows.now)
            rows.insert_records(list(added.values()))
            for run_id in sorted({row.run_id for row in added.values()}):
                _write_run(rows, runs[run_id])
            stored |= added
            return [to_policy_version(stored[row.key]) for row in new]

        return await self._write(work)

    async def update_policy_version(
        self,
        run_id: str,
        version: int,
        policy: str = POLICY,
        path: str | Unset | None = UNSET,
        note: str | Unset | None = UNSET,
        metrics: dict[str, float] | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> PolicyVersion:
        """Change fields of a version."""
        check_text(run_id=run_id, policy=policy, path=path, note=note)
        changes = given(path=path, note=note)
        if metrics is not UNSET:
            changes["metrics"] = _encoded_metrics(metrics, version)
        if metadata is not UNSET:
            changes["metadata"] = encode(metadata or {}, "the metadata of a version")

        def work(rows: Rows) -> PolicyVersion:
            run = _found(rows, run_id)
            row = next(iter(rows.records(VersionRow, [(run_id, policy, version)]).values()), None)
            if row is None:
                raise NotFound(f"there is no version {version} of policy {policy} of run {run_id}")
            row = replace(row, **changes, update_time=latest_heartbeat(row.update_time, rows.now))
            rows.replace_records([row])
            _write_run(rows, run)
            return to_policy_version(row)

        return await self._write(work)

    async def query_policy_versions(
        self,
        *,
        run_id: str | None = None,
        policy: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[PolicyVersion]:
        """Return policy versions."""
        query = versions_query(run_id, policy, sort_by, sort_order, limit, offset)
        return await self._read(lambda rows: query.page(rows.select_records(VersionRow, query), to_policy_version))


def runs_query(
    status_in: Sequence[RunStatus] | None,
    run_id_in: Sequence[str] | None,
    name: str | None,
    name_contains: str | None,
    experiment: str | None,
    filter_logic: FilterLogic,
    sort_by: str | None,
    sort_order: SortOrder,
    limit: int,
    offset: int,
) -> Query:
    """Return the query of `query_runs`. Raises ValueError for invalid arguments."""
    query = Query(
        conditions=conditions(
            equals={"name": name, "experiment": experiment},
            contains={"name": name_contains},
            one_of={"status": status_in, "run_id": run_id_in},
        ),
        logic=filter_logic,
        sort_by=sort_by,
        order=sort_order,
        limit=limit,
        offset=offset,
    )
    return check(query, RUN_SORTS)


def versions_query(
    run_id: str | None, policy: str | None, sort_by: str | None, sort_order: SortOrder, limit: int, offset: int
) -> Query:
    """Return the query of `query_policy_versions`. Raises ValueError for invalid arguments."""
    within = {name: value for name, value in (("run_id", run_id), ("policy", policy)) if value is not None}
    query = Query(within=within, sort_by=sort_by, order=sort_order, limit=limit, offset=offset)
    return check(query, VERSION_SORTS)


def _stored(rows: Rows, run_id: str) -> RunRow | None:
    return rows.records(RunRow, [(run_id,)]).get((run_id,))


def _found(rows: Rows, run_id: str) -> RunRow:
    row = _stored(rows, run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}")
    return row


def _write_run(rows: Rows, row: RunRow) -> RunRow:
    """Write a run's row with a new update time, after a change of the run or of its other records."""
    row = replace(row, update_time=latest_heartbeat(row.update_time, rows.now))
    rows.replace_records([row])
    return row


def _ended(row: RunRow, changes: Changes, now: float) -> Changes:
    """Return the new end time of a run whose status changes. Raises IllegalMove for a change that is not allowed."""
    status: RunStatus = changes.get("status", row.status)
    _check_status(status)
    if status == row.status:
        return {}
    if status not in RUN_MOVES[row.status]:
        raise IllegalMove(f"run {row.run_id} is {row.status} and cannot become {status}")
    return {"end_time": max(row.start_time, now) if status in FINISHED_RUN else None}


def _added(old: StepRow | None, run_id: str, new: StepMetrics, now: float) -> StepRow:
    """Return the row of a step with new metrics; the same object where nothing changes."""
    values, notes = ({}, {}) if old is None else body_of(old)
    all_values, all_notes = {**values, **new.values}, {**notes, **new.notes}
    if old is not None and (all_values, all_notes) == (values, notes):
        return old
    body = encode((all_values, all_notes), "the metrics of a run")
    return StepRow(run_id=run_id, step=new.step, time=new.time or now, body=body)


def version_rows(versions: Sequence[PolicyVersion]) -> list[VersionRow]:
    """Return the rows of new versions. Raises ValueError for a version that cannot be stored."""
    return [_version_row(version) for version in versions]


def _version_row(version: PolicyVersion) -> VersionRow:
    check_text(run_id=version.run_id, policy=version.policy, path=version.path, note=version.note)
    _check_name("a policy's name", version.policy)
    _check_count("version", version.version)
    if version.parent is not None:
        _check_count("parent", version.parent)
    metrics = _encoded_metrics(version.metrics, version.version)
    metadata = encode(version.metadata, "the metadata of a version")
    return VersionRow(**fields_of(version, metrics=metrics, metadata=metadata))


def _encoded_metrics(metrics: Mapping[str, float], version: int) -> bytes:
    _check_finite(metrics, f"version {version}")
    return encode(metrics, "the metrics of a version")


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
