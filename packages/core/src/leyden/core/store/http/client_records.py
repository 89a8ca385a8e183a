"""`HttpRecords`: the part of `HttpStore` that stores and reads runs, metrics and policy versions at the server."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from leyden.core.data.page import Page
from leyden.core.data.route import POLICY
from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.store.arguments import UNSET, FilterLogic, SortOrder, Unset
from leyden.core.store.base import LightningStore
from leyden.core.store.common.argument_types import ArgumentChecks
from leyden.core.store.run_records import RunRecords

P = ParamSpec("P")
T = TypeVar("T")


class HttpRecords(ArgumentChecks, RunRecords):
    """Stores and reads runs, metrics and policy versions at a server."""

    @abstractmethod
    async def _call(
        self, method: Callable[Concatenate[LightningStore, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Send a call of a method of the interface to the server, and return its result."""

    async def add_run(self, run: Run) -> Run:
        """Store a run and return it; if its id is already stored, return the stored run and change nothing."""
        return await self._call(LightningStore.add_run, run)

    async def update_run(
        self,
        run_id: str,
        name: str | Unset = UNSET,
        experiment: str | Unset | None = UNSET,
        status: RunStatus | Unset = UNSET,
        config: dict[str, Any] | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Run:
        """Change fields of a run; `config` and `metadata` are replaced, not merged."""
        return await self._call(LightningStore.update_run, run_id, name, experiment, status, config, metadata)

    async def rewind_run(self, run_id: str, step: int) -> Run:
        """Remove the metrics and the policy versions after `step`."""
        return await self._call(LightningStore.rewind_run, run_id, step)

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
        """Return runs; unsorted results come in the order in which they were added."""
        return await self._call(
            LightningStore.query_runs,
            status_in=status_in,
            run_id_in=run_id_in,
            name=name,
            name_contains=name_contains,
            experiment=experiment,
            filter_logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )

    async def get_run_by_id(self, run_id: str) -> Run | None:
        """Return one run, or None."""
        return await self._call(LightningStore.get_run_by_id, run_id)

    async def add_metrics(self, run_id: str, metrics: Sequence[StepMetrics]) -> int:
        """Add metrics to steps of a run, all or none; return the number of steps that changed."""
        return await self._call(LightningStore.add_metrics, run_id, metrics)

    async def query_metrics(
        self, run_id: str, *, sort_order: SortOrder = "asc", limit: int = -1, offset: int = 0
    ) -> Page[StepMetrics]:
        """Return the metrics of a run's steps, sorted by step; in descending order, the newest come first."""
        return await self._call(LightningStore.query_metrics, run_id, sort_order=sort_order, limit=limit, offset=offset)

    async def add_policy_versions(self, versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        """Store policy versions of runs, all or none; versions that are stored already are not changed."""
        return await self._call(LightningStore.add_policy_versions, versions)

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
        """Change fields of a version; `metrics` and `metadata` are replaced, not merged."""
        return await self._call(
            LightningStore.update_policy_version, run_id, version, policy, path, note, metrics, metadata
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
        """Return policy versions of one run or of all; unsorted results come in the order in which they were added."""
        return await self._call(
            LightningStore.query_policy_versions,
            run_id=run_id,
            policy=policy,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
