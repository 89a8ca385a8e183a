"""`RunRecords`, the part of `LightningStore` that keeps runs: what they are, what they measured, and their versions.

Nothing here queues or wakes anybody. What is sent again, after a lost answer or a crash, changes nothing.
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
        """Store a run. One that is stored already under its id is returned, and nothing changes.

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
        """Change fields of a run; `config` and `metadata` are replaced, not merged.

        Raises IllegalMove for a status that `RUN_MOVES` does not allow.
        """

    @abstractmethod
    async def rewind_run(self, run_id: str, step: int) -> Run:
        """Forget the metrics and the policy versions after `step`: the steps after it are about to be taken again."""

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
        """Runs, unsorted in the order in which they were added."""

    @abstractmethod
    async def get_run_by_id(self, run_id: str) -> Run | None:
        """One run."""

    @abstractmethod
    async def add_metrics(self, run_id: str, metrics: Sequence[StepMetrics]) -> int:
        """Add what was measured at steps of a run, all or none; returns how many steps that changed.

        What a step has already stays; a value of the same name is replaced, so a batch that is sent again changes
        nothing. Raises ValueError for a number that is not finite.
        """

    @abstractmethod
    async def query_metrics(
        self, run_id: str, *, sort_order: SortOrder = "asc", limit: int = -1, offset: int = 0
    ) -> Page[StepMetrics]:
        """What was measured at the steps of a run, by step: the newest come first in descending order."""

    @abstractmethod
    async def add_policy_versions(self, versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        """Store versions of runs' policies, all or none.

        One that is stored already under its run, policy and number is returned, and nothing changes.
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
        """Change fields of a version; `metrics` and `metadata` are replaced, not merged."""

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
        """Versions of a run's policies, or of all runs', unsorted in the order in which they were added."""
