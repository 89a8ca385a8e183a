"""`MemoryRecords`: rows of runs, metrics and policy versions in dicts, which keep the order of creation."""

from collections import OrderedDict
from collections.abc import Sequence

from leyden.core.store.common.record_rows import MetricsRow, RunRow, VersionKey, VersionRow
from leyden.core.store.common.rows import KEPT_SECONDS, Rows
from leyden.core.store.query import Query, evaluate


class MemoryRecords(Rows):
    """The part of `MemoryRows` that holds runs, and the results of requests with an id."""

    def __init__(self) -> None:
        super().__init__(now=0.0)
        self._runs: dict[str, RunRow] = {}
        self._metrics: dict[str, dict[int, MetricsRow]] = {}
        self._versions: dict[VersionKey, VersionRow] = {}
        self._answers: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def recorded_answer(self, request_id: str) -> bytes | None:
        """Return the recorded result, or None."""
        return self._answers.get(request_id, (0.0, None))[1]

    def record_answer(self, request_id: str, answer: bytes) -> None:
        """Record the result, and remove those older than `KEPT_SECONDS`."""
        self._answers[request_id] = (self.now, answer)
        while next(iter(self._answers.values()))[0] < self.now - KEPT_SECONDS:
            self._answers.popitem(last=False)

    def run(self, run_id: str) -> RunRow | None:
        """Return the row found."""
        return self._runs.get(run_id)

    def insert_run(self, row: RunRow) -> None:
        """Append the row."""
        self._runs[row.run_id] = row

    def replace_run(self, row: RunRow) -> None:
        """Replace the row."""
        self._runs[row.run_id] = row

    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """Evaluate the query over all runs."""
        return evaluate(self._runs.values(), query)

    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """Return the rows found."""
        stored = self._metrics.get(run_id, {})
        return {step: stored[step] for step in steps if step in stored}

    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Append the rows."""
        for row in rows:
            self._metrics.setdefault(row.run_id, {})[row.step] = row

    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Replace the rows."""
        self.insert_metrics(rows)

    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """Evaluate the query over one run's steps."""
        return evaluate(self._metrics.get(query.within["run_id"], {}).values(), query)

    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """Return the row found."""
        return self._versions.get(key)

    def insert_policy_version(self, row: VersionRow) -> None:
        """Append the row."""
        self._versions[row.run_id, row.policy, row.version] = row

    def replace_policy_version(self, row: VersionRow) -> None:
        """Replace the row."""
        self.insert_policy_version(row)

    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """Evaluate the query over all versions."""
        return evaluate(self._versions.values(), query)

    def forget_after(self, run_id: str, step: int) -> None:
        """Remove the run's metrics and versions after `step`."""
        stored = self._metrics.get(run_id, {})
        self._metrics[run_id] = {number: row for number, row in stored.items() if number <= step}
        self._versions = {key: row for key, row in self._versions.items() if key[0] != run_id or key[2] <= step}
