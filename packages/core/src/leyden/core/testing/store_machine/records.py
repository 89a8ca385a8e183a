"""`RecordsModel`: the part of `Model` with the expected answers and states of the methods about runs."""

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from leyden.core.data.page import Page
from leyden.core.data.run import FINISHED_RUN, RUN_MOVES, PolicyVersion, Run, StepMetrics
from leyden.core.errors import CallRefused, IllegalMove, NotFound
from leyden.core.testing.store_machine.questions import answer


class RecordsModel:
    """Runs, metrics and versions in plain dicts."""

    now: float

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.measured: dict[str, dict[int, StepMetrics]] = {}
        self.versions: dict[tuple[str, str, int], PolicyVersion] = {}

    def add_run(self, given: object, run: Run) -> Run:
        """Store a run unless its id exists."""
        if ":" in run.run_id:
            raise CallRefused
        if run.run_id not in self.runs:
            ended = self.now if run.status in FINISHED_RUN else None
            self.runs[run.run_id] = replace(run, start_time=self.now, update_time=self.now, end_time=ended)
        return self.runs[run.run_id]

    def update_run(self, given: object, run_id: str, **fields: Any) -> Run:
        """Change fields of a run."""
        run = self._found(run_id)
        status = fields.get("status", run.status)
        if status != run.status:
            if status not in RUN_MOVES[run.status]:
                raise IllegalMove
            fields["end_time"] = self.now if status in FINISHED_RUN else None
        return self._write(replace(run, **fields))

    def rewind_run(self, given: object, run_id: str, step: int) -> Run:
        """Keep metrics and versions up to a step."""
        run = self._found(run_id)
        own = self.measured.get(run_id, {})
        self.measured[run_id] = {number: found for number, found in own.items() if number <= step}
        self.versions = {key: found for key, found in self.versions.items() if key[0] != run_id or key[2] <= step}
        return self._write(run)

    def add_metrics(self, given: object, run_id: str, metrics: Sequence[StepMetrics]) -> int:
        """Add to the metrics of steps."""
        if any(one.step < 0 or not all(map(math.isfinite, one.values.values())) for one in metrics):
            raise CallRefused
        run = self._found(run_id)
        before = self.measured.get(run_id, {})
        after = dict(before)
        for one in metrics:
            old = after.get(one.step)
            values, notes = ({}, {}) if old is None else (old.values, old.notes)
            new = replace(one, values={**values, **one.values}, notes={**notes, **one.notes}, time=self.now)
            if old is None or (new.values, new.notes) != (values, notes):
                after[one.step] = new
        changed = [step for step in after if after[step] != before.get(step)]
        self.measured[run_id] = dict(sorted(after.items()))
        if changed:
            self._write(run)
        return len(changed)

    def add_policy_versions(self, given: object, versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        """Store versions unless their numbers exist."""
        if any(version.version < 0 for version in versions):
            raise CallRefused
        for version in versions:
            self._found(version.run_id)
        for version in versions:
            if _key(version) not in self.versions:
                self.versions[_key(version)] = replace(version, create_time=self.now, update_time=self.now)
                self._write(self.runs[version.run_id])
        return [self.versions[_key(version)] for version in versions]

    def update_policy_version(
        self, given: object, run_id: str, version: int, policy: str = "policy", **fields: Any
    ) -> PolicyVersion:
        """Change fields of a version."""
        run = self._found(run_id)
        key = (run_id, policy, version)
        if key not in self.versions:
            raise NotFound
        self.versions[key] = replace(self.versions[key], **fields, update_time=self.now)
        self._write(run)
        return self.versions[key]

    def query_runs(
        self,
        given: object,
        *,
        status_in: Any = None,
        name: str | None = None,
        name_contains: str | None = None,
        experiment: str | None = None,
        **paging: Any,
    ) -> Page[Run]:
        """Return a page of runs."""
        filters = {"status_in": status_in, "name": name, "name_contains": name_contains, "experiment": experiment}
        return answer(self.runs.values(), filters, **paging)

    def query_metrics(self, given: object, run_id: str, **paging: Any) -> Page[StepMetrics]:
        """Return a page of steps."""
        return answer(self.measured.get(run_id, {}).values(), {}, sort_by="step", **paging)

    def query_policy_versions(
        self, given: object, *, run_id: str | None = None, policy: str | None = None, **paging: Any
    ) -> Page[PolicyVersion]:
        """Return a page of versions."""
        return answer(self.versions.values(), {"run_id": run_id, "policy": policy}, **paging)

    def get_run_by_id(self, given: object, run_id: str) -> Run | None:
        """Return one run."""
        return self.runs.get(run_id)

    def _found(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise NotFound
        return self.runs[run_id]

    def _write(self, run: Run) -> Run:
        self.runs[run.run_id] = replace(run, update_time=self.now)
        return self.runs[run.run_id]


def _key(version: PolicyVersion) -> tuple[str, str, int]:
    return version.run_id, version.policy, version.version
