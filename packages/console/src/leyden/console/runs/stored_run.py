"""`StoredRun`: a run that is read from a store alone, on a machine that has no folder of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from leyden.console.runs.folder_run import policies_line
from leyden.console.runs.metrics_file import Line, MetricsLines
from leyden.console.runs.run import Run, RunItem, State, Version, held_out_of
from leyden.core.data.run import Run as RunRecord
from leyden.core.data.run import StepMetrics
from leyden.core.errors import RunError
from leyden.core.masking import mask_text
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.trainer.why.reading import run_facts_of
from leyden.core.trainer.why.trained_or_reason import RunFacts

ROLLOUTS = "rollouts"
"""Key of what a store holds without a run, such as captures of agents in production."""
_STATES: dict[str, State] = {"succeeded": "finished", "running": "running", "failed": "failed", "stopped": "stopped"}
_HELD_OUT = "held_out/"


class StoreFolder:
    """A store and the runs that it knows."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._store: LightningStore | None = None

    async def open(self) -> LightningStore:
        """Return the store. Its clock stands still: to look at it must not end what is under way in it."""
        if self._store is None:
            self._store = await open_store(self.uri, clock=lambda: 0.0)
        return self._store

    async def runs(self) -> list[tuple[str, str]]:
        """Return id and name of each run; a store without any has one entry for its rollouts."""
        store = await self.open()
        found = [(run.run_id, run.name) for run in await store.query_runs()]
        return found or [("", ROLLOUTS)]

    async def close(self) -> None:
        """Close the store."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()


class StoredRun(Run):
    """One run of a store, or with an empty id the rollouts of a store that knows no run."""

    def __init__(self, source: StoreFolder, run_id: str) -> None:
        self._source, self._run_id = source, run_id
        self.place = f"{mask_text(source.uri)} {run_id}".strip()

    async def _record(self) -> RunRecord | None:
        if not self._run_id:
            return None
        record = await (await self._source.open()).get_run_by_id(self._run_id)
        if record is None:
            raise RunError(f"{self.place} is no longer in its store")
        return record

    async def item(self, key: str) -> RunItem:
        """Return the run as one line."""
        record = await self._record()
        uri = mask_text(self._source.uri)
        if record is None:
            return RunItem(key=key, name=key, folder=None, source=uri, state="running")
        config = record.config
        page = await (await self._source.open()).query_metrics(self._run_id, sort_order="desc", limit=1)
        last = page[0] if page else StepMetrics(step=0)
        return RunItem(
            key=key,
            name=record.name,
            folder=None,
            source=uri,
            experiment=record.experiment,
            state=_STATES[record.status],
            algorithm=config.get("algorithm"),
            policy=policies_line(config.get("policy")),
            step=last.step,
            steps=config.get("steps"),
            reward=last.values.get("reward"),
            held_out=held_out_of((await self.metrics()).lines),
            began=record.start_time,
            updated=record.update_time,
            seconds=None if record.end_time is None else record.end_time - record.start_time,
        )

    async def config(self) -> Mapping[str, Any]:
        """Return the configuration that the store keeps."""
        record = await self._record()
        return {} if record is None else record.config

    async def report(self) -> Mapping[str, Any] | None:
        """Return None: a store keeps no report."""
        return None

    async def versions(self) -> Sequence[Version]:
        """Return the versions that the store keeps; of several policies, one for each number."""
        if not self._run_id:
            return []
        page = await (await self._source.open()).query_policy_versions(run_id=self._run_id)
        found: dict[int, Version] = {}
        for own in page:
            scores = {name: value for name, value in own.metrics.items() if name.startswith(_HELD_OUT)}
            found[own.version] = Version(
                version=own.version,
                parent=own.parent,
                created=own.create_time,
                held_out=_sets(scores, "/success"),
                sampled=_sets(scores, "/sampled"),
                has_weights=own.path is not None and own.version > 0,
            )
        return [found[number] for number in sorted(found)]

    async def metrics(self) -> MetricsLines:
        """Return the metrics of all steps in the form of `metrics.jsonl`."""
        if not self._run_id:
            return MetricsLines()
        page = await (await self._source.open()).query_metrics(self._run_id)
        return MetricsLines([line for one in page for line in _lines(one)], generation=f"store-{self._run_id}")

    async def store(self) -> LightningStore | None:
        """Return the store."""
        return await self._source.open()

    async def facts(self) -> RunFacts:
        """Return the facts that the store alone has: which rollouts were trained is in the run's folder."""
        return run_facts_of(None)


def _lines(metrics: StepMetrics) -> list[Line]:
    """Return a step's metrics as lines of `metrics.jsonl`: of the step, of evaluations and of alerts."""
    plain = {name: value for name, value in metrics.values.items() if _HELD_OUT not in name}
    lines: list[Line] = [{"step": metrics.step, **plain}] if plain else []
    for name, value in metrics.values.items():
        if name.startswith(_HELD_OUT):
            held_out, _, how = name.removeprefix(_HELD_OUT).rpartition("/")
            lines.append({"step": metrics.step, "held_out": held_out, how: value})
    for name, text in metrics.notes.items():
        if name.startswith("alert/"):
            lines.append({"step": metrics.step, "alert": name.removeprefix("alert/"), "message": text})
    return lines


def _sets(scores: Mapping[str, float], ending: str) -> dict[str, float | None]:
    return {
        name.removeprefix(_HELD_OUT).removesuffix(ending): value
        for name, value in scores.items()
        if name.endswith(ending)
    }
