"""Export rows of runs: runs, the metrics of their steps, and the versions of their policies."""

from collections.abc import AsyncGenerator

import msgspec

from leyden.core.data.run import Run
from leyden.core.store.base import LightningStore
from leyden.core.trainer.export.rows import Row, Table

RECORDS: tuple[Table, ...] = ("runs", "metrics", "policy_versions")
"""Tables about the runs in a store, as opposed to its rollouts."""
PAGE = 1000
"""Number of rows per query."""


async def record_rows(store: LightningStore, table: Table) -> AsyncGenerator[Row]:
    """Yield every row of one table of `RECORDS`: runs in the order they were added, metrics by step."""
    if table == "policy_versions":
        async for row in _version_rows(store):
            yield row
        return
    offset = 0
    while page := (await store.query_runs(limit=PAGE, offset=offset)).items:
        for run in page:
            if table == "runs":
                yield {**msgspec.structs.asdict(run), "config": _json(run.config), "metadata": _json(run.metadata)}
            else:
                async for row in _metrics_rows(store, run):
                    yield row
        offset += len(page)


async def _metrics_rows(store: LightningStore, run: Run) -> AsyncGenerator[Row]:
    """Yield a row for each number and each note of each step."""
    offset = 0
    while page := (await store.query_metrics(run.run_id, limit=PAGE, offset=offset)).items:
        for found in page:
            at = {"run_id": run.run_id, "step": found.step, "time": found.time}
            for name, value in found.values.items():
                yield {**at, "name": name, "value": value, "note": None}
            for name, note in found.notes.items():
                yield {**at, "name": name, "value": None, "note": note}
        offset += len(page)


async def _version_rows(store: LightningStore) -> AsyncGenerator[Row]:
    offset = 0
    while page := (await store.query_policy_versions(limit=PAGE, offset=offset)).items:
        for version in page:
            fields = msgspec.structs.asdict(version)
            yield {**fields, "metrics": _json(version.metrics), "metadata": _json(version.metadata)}
        offset += len(page)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
