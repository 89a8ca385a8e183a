"""`StoredRun`: a run that is read from a store alone, on a machine that has no folder of it."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leyden.console.plain import one_line
from leyden.console.runs.folder_run import policies_line
from leyden.console.runs.metrics_file import Line, MetricsLines
from leyden.console.runs.run import Run, RunItem, Version, held_out_of
from leyden.core.data.run import Run as RunRecord
from leyden.core.data.run import StepMetrics
from leyden.core.errors import LeydenError, RunError, UsageError
from leyden.core.masking import mask_text
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.trainer.run_state import RunState
from leyden.core.trainer.why.reading import run_facts_of
from leyden.core.trainer.why.trained_or_reason import RunFacts

ROLLOUTS = "rollouts"
"""Key of what a store holds without a run, such as captures of agents in production."""
_STATES: dict[str, RunState] = {"succeeded": "finished", "running": "running", "failed": "failed", "stopped": "stopped"}
OF_ROLLOUTS = ("rollouts", "health", "bottlenecks")
"""Pages of a store that knows no run."""
_HELD_OUT = "held_out/"
AT_ONCE = 0.05
"""Seconds that a list waits for a store that did not answer in time before."""
OLD = 5.0
"""Seconds after which a list says that a store does not answer, which it did before."""

log = logging.getLogger(__name__)


class StoreFolder:
    """A store and the runs that it knows, as they were when it was last read in the background."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.runs: dict[str, StoredRun] = {}
        """Runs by id, read so far; a store without any has one entry for its rollouts."""
        self._store: LightningStore | None = None
        self._opening: asyncio.Task[LightningStore] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began = 0.0
        self._problem = ""
        """Why it could not be read the last time."""
        self._is_slow = False
        self._is_complete = False
        """Whether all runs have been read once."""

    async def open(self) -> LightningStore:
        """Return the store. Its clock stands still: to look at it must not end what is under way in it.

        Callers that wait for an unreachable server wait for the same attempt.
        """
        if self._store is not None:
            return self._store
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> LightningStore:
        file = Path(self.uri.removeprefix("sqlite:///"))
        if self.uri.startswith("sqlite:///") and not file.exists():  # to open it would make it
            raise UsageError(f"there is no file {file}")
        self._store = await open_store(self.uri, clock=lambda: 0.0)
        return self._store

    async def problem(self, seconds: float) -> str:
        """Read the runs for at most `seconds`, and go on in the background; return why they are not up to date.

        Returns an empty text if they are, or are as old as a few seconds. Does not wait for a store that did not
        answer in time before.
        """
        if self._reading is None or self._reading.done():
            self._began = time.monotonic()
            self._reading = asyncio.create_task(self._read())
        done, _ = await asyncio.wait([self._reading], timeout=AT_ONCE if self._is_slow else seconds)
        self._is_slow = not done or bool(self._problem)
        waited = time.monotonic() - self._began
        if done or self._problem or (self._is_complete and waited < OLD):
            return self._problem
        return f"no complete answer for {waited:.0f} seconds"

    async def _read(self) -> None:
        try:
            await self._read_runs()
        except (LeydenError, OSError) as error:
            self._problem = one_line(error)
        except Exception as error:  # a library's error that the store does not know
            log.exception("%s cannot be read", mask_text(self.uri))
            self._problem = f"{type(error).__name__}: {one_line(error)}"
        else:
            self._problem, self._is_complete = "", True

    async def _read_runs(self) -> None:
        store = await self.open()
        records = {run.run_id: run for run in await store.query_runs()}
        for run_id, record in records.items():
            run = self.runs.get(run_id) or StoredRun(self, run_id)
            await run.read(record)
            self.runs[run_id] = run
        if not records:
            self.runs.setdefault("", StoredRun(self, ""))
        for gone in self.runs.keys() - (records or {""}):
            del self.runs[gone]

    async def close(self) -> None:
        """Close the store."""
        for task in (self._reading, self._opening):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        store, self._store = self._store, None
        if store is not None:
            await store.close()


class StoredRun(Run):
    """One run of a store, or with an empty id the rollouts of a store that knows no run."""

    def __init__(self, source: StoreFolder, run_id: str) -> None:
        self._source, self._run_id = source, run_id
        self.place = f"{mask_text(source.uri)} {run_id}".strip()
        self.name = ROLLOUTS
        self._known: tuple[RunRecord, RunItem] | None = None

    async def _record(self) -> RunRecord | None:
        if not self._run_id:
            return None
        record = await (await self._source.open()).get_run_by_id(self._run_id)
        if record is None:
            raise RunError(f"{self.place} is no longer in its store")
        return record

    async def read(self, record: RunRecord) -> None:
        """Read what the list shows, unless the run has ended and its record is the same as before."""
        self.name = record.name
        if self._known is None or self._known[0] != record or record.status == "running":
            self._known = (record, await self._item(record))

    async def listed(self, key: str) -> RunItem:
        """Return the run as it was when its store was last read."""
        return await self.item(key) if self._known is None else msgspec.structs.replace(self._known[1], key=key)

    async def item(self, key: str) -> RunItem:
        """Return the run as one line."""
        record = await self._record()
        if record is None:
            await self._source.open()
            uri = mask_text(self._source.uri)
            return RunItem(key=key, name=key, folder=None, source=uri, state="running")
        return msgspec.structs.replace(await self._item(record), key=key)

    async def _item(self, record: RunRecord) -> RunItem:
        config = record.config
        page = await (await self._source.open()).query_metrics(self._run_id, sort_order="desc", limit=1)
        last = page[0] if page else StepMetrics(step=0)
        return RunItem(
            key="",
            name=record.name,
            folder=None,
            source=mask_text(self._source.uri),
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

    def pages(self, config: Mapping[str, Any]) -> Sequence[str]:
        """Return the pages of a run; of a store without a run, those of its rollouts."""
        return super().pages(config) if self._run_id else OF_ROLLOUTS

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

    @property
    def others(self) -> int:
        """Number of other runs that the store had when it was last read."""
        return max(0, len(self._source.runs) - 1)

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
