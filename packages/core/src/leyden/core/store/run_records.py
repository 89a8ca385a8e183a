"""`RunRecords`: the part of `LightningStore` that keeps runs, the metrics of their steps, and their policy versions.

Nothing here uses the queue or wakes waiting callers. A call that is sent again, after a lost answer or a crash, changes
nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from leyden.core.data.page import Page
from leyden.core.data.route import POLICY
from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.store.arguments import UNSET, FilterLogic, SortOrder, Unset


class RunRecords(ABC):
    """Runs, the metrics of their steps, and the versions of their policies."""

    @abstractmethod
    async def add_run(self, run: Run) -> Run:
        """Store a run and return it; if its id is already stored, return the stored run and change nothing.

        Raises ValueError for an id that cannot be a name.
        """

    @abstractmethod
    async def update_run(
        self,
        run_id: str,
        name: str | Unset = UNSET,
        experiment: str | Unset | None = UNSET,
        status: RunStatus | Unset = UNSET,
        config: dict[str, Any] | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Run:
        """Change fields of a run and return it; `config` and `metadata` are replaced, not merged.

        Raises IllegalMove for a status that `RUN_MOVES` does not allow.
        """

    @abstractmethod
    async def rewind_run(self, run_id: str, step: int) -> Run:
        """Remove metrics and policy versions after `step`, since those steps will be repeated; return the run."""

    @abstractmethod
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

    @abstractmethod
    async def get_run_by_id(self, run_id: str) -> Run | None:
        """Return one run, or None."""

    @abstractmethod
    async def add_metrics(self, run_id: str, metrics: Sequence[StepMetrics]) -> int:
        """Add metrics to steps of a run, all or none; return the number of steps that changed.

        Values and notes already stored for a step stay, and those with the same name are replaced. A repeated batch
        therefore changes nothing. Raises ValueError for a number that is not finite.
        """

    @abstractmethod
    async def query_metrics(
        self, run_id: str, *, sort_order: SortOrder = "asc", limit: int = -1, offset: int = 0
    ) -> Page[StepMetrics]:
        """Return the metrics of a run's steps, sorted by step; in descending order, the newest come first."""

    @abstractmethod
    async def add_policy_versions(self, versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        """Store policy versions of runs, all or none, and return them.

        For a version whose run, policy and number are already stored, the stored version is returned and not changed.
        """

    @abstractmethod
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
        """Change fields of a version and return it; `metrics` and `metadata` are replaced, not merged."""

    @abstractmethod
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
