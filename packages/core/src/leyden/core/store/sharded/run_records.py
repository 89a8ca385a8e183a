"""`ShardedRunRecords`: runs, the metrics of their steps and the versions of their policies, each run on one shard."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from leyden.core.data.page import Page
from leyden.core.data.route import POLICY
from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.errors import NotFound
from leyden.core.store.arguments import UNSET, FilterLogic, SortOrder, Unset
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.rows import Rows
from leyden.core.store.common.run_record_rows import R, RunRow, VersionRow, to_policy_version, to_run
from leyden.core.store.common.run_records import runs_query, version_rows, versions_query
from leyden.core.store.common.single_calls import SingleCalls
from leyden.core.store.query import Place, Query
from leyden.core.store.sharded.locations import Locations
from leyden.core.store.sharded.merging import Part, merged_page
from leyden.core.store.sharded.shard import Shard
from leyden.core.store.sharded.shards import Shards
from leyden.core.store.text import check_text

T = TypeVar("T")
N = TypeVar("N")


class ShardedRunRecords(SingleCalls):
    """The part of `ShardedStore` that keeps records of runs."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._locations = Locations(shards)

    async def _on_run(self, run_id: str, call: Callable[[LocalStore], Awaitable[T]]) -> T:
        """Make a call on the shard that has the run; where none has it, on one that reports that."""
        check_text(run_id=run_id)
        shard = await self._locations.run(run_id) or await self._shards.first_reachable(run_id)
        return await shard.call(call)

    async def add_run(self, run: Run) -> Run:
        """Store a run on the shard for its id."""
        check_text(run_id=run.run_id)
        shard = await self._locations.run(run.run_id, is_new=True) or await self._shards.place(run.run_id)
        return await shard.call(lambda store: store.add_run(run))

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
        return await self._on_run(
            run_id, lambda store: store.update_run(run_id, name, experiment, status, config, metadata)
        )

    async def rewind_run(self, run_id: str, step: int) -> Run:
        """Remove the metrics and versions after a step."""
        return await self._on_run(run_id, lambda store: store.rewind_run(run_id, step))

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
        """Return runs of all shards."""
        query = runs_query(
            status_in, run_id_in, name, name_contains, experiment, filter_logic, sort_by, sort_order, limit, offset
        )
        return await merged_page(self._shards, query, lambda rows, query: _part(rows, RunRow, query, to_run))

    async def get_run_by_id(self, run_id: str) -> Run | None:
        """Return one run."""
        return await self._on_run(run_id, lambda store: store.get_run_by_id(run_id))

    async def add_metrics(self, run_id: str, metrics: Sequence[StepMetrics]) -> int:
        """Add metrics of steps."""
        return await self._on_run(run_id, lambda store: store.add_metrics(run_id, metrics))

    async def query_metrics(
        self, run_id: str, *, sort_order: SortOrder = "asc", limit: int = -1, offset: int = 0
    ) -> Page[StepMetrics]:
        """Return metrics by step."""
        return await self._on_run(
            run_id, lambda store: store.query_metrics(run_id, sort_order=sort_order, limit=limit, offset=offset)
        )

    async def add_policy_versions(self, versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        """Store versions, all or none where they are of runs on one shard."""
        version_rows(versions)  # raises for what no shard would store
        groups: dict[Shard, list[PolicyVersion]] = {}
        unknown: list[str] = []
        for version in versions:
            check_text(run_id=version.run_id)
            shard = await self._locations.run(version.run_id)
            if shard is None:
                unknown.append(version.run_id)
                shard = await self._shards.first_reachable(version.run_id)
            groups.setdefault(shard, []).append(version)
        if unknown and len(groups) > 1:
            raise NotFound(f"there is no run {unknown[0]}")
        added = await self._shards.call_all(
            {shard: lambda store, part=part: store.add_policy_versions(part) for shard, part in groups.items()}
        )
        left = {shard: iter(found) for shard, found in added.items()}
        shards = {id(version): shard for shard, part in groups.items() for version in part}
        return [next(left[shards[id(version)]]) for version in versions]

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
        return await self._on_run(
            run_id,
            lambda store: store.update_policy_version(run_id, version, policy, path, note, metrics, metadata),
        )

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
        """Return policy versions of one run, or of the runs of all shards."""
        query = versions_query(run_id, policy, sort_by, sort_order, limit, offset)
        if run_id is not None:
            return await self._on_run(
                run_id,
                lambda store: store.query_policy_versions(
                    run_id=run_id, policy=policy, sort_by=sort_by, sort_order=sort_order, limit=limit, offset=offset
                ),
            )
        return await merged_page(
            self._shards, query, lambda rows, query: _part(rows, VersionRow, query, to_policy_version)
        )


def _part(rows: Rows, kind: type[R], query: Query, to_record: Callable[[R], N]) -> Part[N]:
    found, total = rows.select_records(kind, query)
    positions = rows.positions(found)
    places = [Place.of(row, position, query) for row, position in zip(found, positions, strict=True)]
    return Part([to_record(row) for row in found], places, total)
