"""`MemoryRecords`: runs, metrics and versions of policies in dicts, which keep the order of creation."""

from collections import OrderedDict
from collections.abc import Sequence

from leyden.core.store.common.record_rows import MetricsRow, RunRow, VersionKey, VersionRow
from leyden.core.store.common.rows import KEPT_SECONDS, Rows
from leyden.core.store.query import Query, evaluate


class MemoryRecords(Rows):
    """The part of `MemoryRows` that holds runs, and what named requests made."""

    def __init__(self) -> None:
        super().__init__(now=0.0)
        self._runs: dict[str, RunRow] = {}
        self._metrics: dict[str, dict[int, MetricsRow]] = {}
        self._versions: dict[VersionKey, VersionRow] = {}
        self._answers: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def answered(self, request_id: str) -> bytes | None:
        """Look up."""
        return self._answers.get(request_id, (0.0, None))[1]

    def note_answer(self, request_id: str, answer: bytes) -> None:
        """Append, and forget the oldest."""
        self._answers[request_id] = (self.now, answer)
        while next(iter(self._answers.values()))[0] < self.now - KEPT_SECONDS:
            self._answers.popitem(last=False)

    def run(self, run_id: str) -> RunRow | None:
        """Look up."""
        return self._runs.get(run_id)

    def insert_run(self, row: RunRow) -> None:
        """Append."""
        self._runs[row.run_id] = row

    def replace_run(self, row: RunRow) -> None:
        """Put in its place."""
        self._runs[row.run_id] = row

    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """Evaluate over all."""
        return evaluate(self._runs.values(), query)

    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """Look up."""
        stored = self._metrics.get(run_id, {})
        return {step: stored[step] for step in steps if step in stored}

    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Append."""
        for row in rows:
            self._metrics.setdefault(row.run_id, {})[row.step] = row

    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Put in their places."""
        self.insert_metrics(rows)

    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """Evaluate over one run's."""
        return evaluate(self._metrics.get(query.within["run_id"], {}).values(), query)

    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """Look up."""
        return self._versions.get(key)

    def insert_policy_version(self, row: VersionRow) -> None:
        """Append."""
        self._versions[row.run_id, row.policy, row.version] = row

    def replace_policy_version(self, row: VersionRow) -> None:
        """Put in its place."""
        self.insert_policy_version(row)

    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """Evaluate over all."""
        return evaluate(self._versions.values(), query)

    def forget_after(self, run_id: str, step: int) -> None:
        """Keep the others."""
        stored = self._metrics.get(run_id, {})
        self._metrics[run_id] = {number: row for number, row in stored.items() if number <= step}
        self._versions = {key: row for key, row in self._versions.items() if key[0] != run_id or key[2] <= step}
