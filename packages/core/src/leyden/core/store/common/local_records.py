"""`LocalRecords`: runs, metrics and policy versions on top of transactions; `records` has the rules."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from leyden.core.data.page import Page
from leyden.core.data.route import POLICY
from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.errors import CallRefused
from leyden.core.store.arguments import UNSET, FilterLogic, SortOrder, Unset
from leyden.core.store.common import records
from leyden.core.store.common.argument_types import ArgumentChecks
from leyden.core.store.common.record_rows import to_metrics, to_policy_version, to_run
from leyden.core.store.common.rows import Changes, Rows, encode
from leyden.core.store.query import Query, check, conditions
from leyden.core.store.run_records import RunRecords
from leyden.core.store.text import check_text

T = TypeVar("T")

RUN_SORTS = frozenset({"run_id", "name", "experiment", "status", "start_time", "end_time", "update_time"})
VERSION_SORTS = frozenset({"run_id", "policy", "version", "parent", "path", "note", "create_time", "update_time"})


class LocalRecords(ArgumentChecks, RunRecords):
    """The part of `LocalStore` that keeps runs."""

    @abstractmethod
    async def _read(self, work: Callable[[Rows], T]) -> T:
        """Run `work` on committed data and return its result."""

    @abstractmethod
    async def _write(self, work: Callable[[Rows], T]) -> T:
        """Run `work` in a transaction, commit it, and return the result."""

    async def add_run(self, run: Run) -> Run:
        """Store a run."""
        row = records.run_row(run)
        return await self._write(lambda rows: records.add_run(rows, row))

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
        changes = _given(experiment=experiment, **_not_none(name=name, status=status, config=config))
        if "config" in changes:
            changes["config"] = encode(config, "the config of a run")
        if metadata is not UNSET:
            changes["metadata"] = encode(metadata or {}, "the metadata of a run")
        return await self._write(lambda rows: records.update_run(rows, run_id, changes))

    async def rewind_run(self, run_id: str, step: int) -> Run:
        """Remove the metrics and versions after a step."""
        check_text(run_id=run_id)
        return await self._write(lambda rows: records.rewind_run(rows, run_id, step))

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
        check(query, RUN_SORTS)
        return await self._read(lambda rows: query.page(rows.select_runs(query), to_run))

    async def get_run_by_id(self, run_id: str) -> Run | None:
        """Return one run."""
        check_text(run_id=run_id)

        def work(rows: Rows) -> Run | None:
            row = rows.run(run_id)
            return None if row is None else to_run(row)

        return await self._read(work)

    async def add_metrics(self, run_id: str, metrics: Sequence[StepMetrics]) -> int:
        """Add metrics of steps."""
        check_text(run_id=run_id)
        records.check_metrics(metrics)
        return await self._write(lambda rows: records.add_metrics(rows, run_id, metrics))

    async def query_metrics(
        self, run_id: str, *, sort_order: SortOrder = "asc", limit: int = -1, offset: int = 0
    ) -> Page[StepMetrics]:
        """Return metrics by step."""
        query = Query(within={"run_id": run_id}, sort_by="step", order=sort_order, limit=limit, offset=offset)
        check(query, frozenset({"step"}))
        return await self._read(lambda rows: query.page(rows.select_metrics(query), to_metrics))

    async def add_policy_versions(self, versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        """Store versions."""
        new = [records.version_row(version) for version in versions]
        return await self._write(lambda rows: records.add_policy_versions(rows, new))

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
        changes = _given(path=path, note=note)
        if metrics is not UNSET:
            changes["metrics"] = records.encoded_metrics(metrics, version)
        if metadata is not UNSET:
            changes["metadata"] = encode(metadata or {}, "the metadata of a version")
        key = (run_id, policy, version)
        return await self._write(lambda rows: records.update_policy_version(rows, key, changes))

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
        within = {name: value for name, value in (("run_id", run_id), ("policy", policy)) if value is not None}
        query = Query(within=within, sort_by=sort_by, order=sort_order, limit=limit, offset=offset)
        check(query, VERSION_SORTS)
        return await self._read(lambda rows: query.page(rows.select_policy_versions(query), to_policy_version))


def _given(**fields: Any) -> Changes:
    return {name: value for name, value in fields.items() if value is not UNSET}


def _not_none(**fields: Any) -> Changes:
    for name, value in fields.items():
        if value is None:
            raise CallRefused(f"{name} cannot be None; leave it out to keep it")
    return _given(**fields)
