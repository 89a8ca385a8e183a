"""`StoredRun`: a run that is read from a store alone, on a machine that has no folder of it."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leyden.console.plain import counted, one_line
from leyden.console.runs.folder_facts import FolderFacts
from leyden.console.runs.folder_run import policies_line
from leyden.console.runs.metrics_file import Line, MetricsLines
from leyden.console.runs.run import HeldOut, Run, RunItem, Version, held_out_of
from leyden.core.data.run import Run as RunRecord
from leyden.core.data.run import PolicyVersion, StepMetrics
from leyden.core.errors import LeydenError, RunError, UsageError
from leyden.core.masking import mask_text
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.store.queue_view import QueueView
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.shared_runs import folder_on_this_machine
from leyden.core.trainer.run_state import RunState
from leyden.core.trainer.why.reading import run_facts_of
from leyden.core.trainer.why.trained_or_reason import RunFacts

ROLLOUTS = "rollouts"
"""Key of what a store holds without a run, such as captures of agents in production."""
_STATES: dict[str, RunState] = {"succeeded": "finished", "running": "running", "failed": "failed", "stopped": "stopped"}
OF_ROLLOUTS = ("rollouts", "health", "bottlenecks")
"""Pages of a store without runs."""
_HELD_OUT = "held_out/"
NUMBERS = ("step", "reward", "held_out")
"""Fields of a run in the list that are not in its record."""
A_MOMENT = 0.05
"""Seconds that a list waits for a store that did not answer in time before."""
AT_ONCE = 8
"""Runs whose metrics are read at the same time."""
SHARE = 8
"""The versions of all runs are read if more than one run of so many is to be read."""
VERSIONS = 2000
"""Versions of one query."""
ACTIVE = 3600.0
"""Seconds after its last write for which the numbers of a running run are read for each list."""
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
        self._unread = 0
        """Number of runs of which only the record has been read."""
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
        done, _ = await asyncio.wait([self._reading], timeout=A_MOMENT if self._is_slow else seconds)
        self._is_slow = not done or bool(self._problem)
        waited = time.monotonic() - self._began
        if done or self._problem or (self._is_complete and waited < OLD):
            return self._problem
        if self._unread and not self._is_complete:
            unread = counted(self._unread, "run")
            return f"steps and rewards of {unread} have not been read after {waited:.0f} s"
        return f"no complete answer for {waited:.0f} s"

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
        """Read the records of all runs, and then the numbers of those that may have changed."""
        store = await self.open()
        records = {run.run_id: run for run in await store.query_runs()}
        for run_id, record in records.items():
            self.runs.setdefault(run_id, StoredRun(self, run_id)).note(record)
        if not records:
            self.runs.setdefault("", StoredRun(self, ""))
        for gone in self.runs.keys() - (records or {""}):
            del self.runs[gone]
        changed = [self.runs[run_id] for run_id in records if self.runs[run_id].may_have_changed]
        self._unread = sum(not run.is_read for run in changed)
        if len(changed) > AT_ONCE and len(changed) * SHARE > len(records):
            await self._read_versions(store)
            changed = [run for run in changed if run.may_have_changed]
        for at in range(0, len(changed), AT_ONCE):
            found = await asyncio.gather(*(run.read() for run in changed[at : at + AT_ONCE]), return_exceptions=True)
            for error in found:
                if isinstance(error, BaseException):
                    raise error
            self._unread = sum(not run.is_read for run in changed[at + AT_ONCE :])
        self._unread = 0

    async def _read_versions(self, store: LightningStore) -> None:
        """Read the numbers of all runs from the versions of their policies: a query for many runs, not one for each."""
        limit = -1 if self.uri.startswith("redis") else VERSIONS  # Redis reads all of them for each page
        read, offset, total = dict[str, list[PolicyVersion]](), 0, 1
        while offset < total:
            page = await store.query_policy_versions(limit=limit, offset=offset)
            offset, total = offset + max(1, len(page)), page.total
            for one in page:
                read.setdefault(one.run_id, []).append(shortened(one))
        for run_id, versions in read.items():
            if (run := self.runs.get(run_id)) is not None:
                run.take(versions)

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
    """One run of a store, or with an empty id the rollouts of a store without runs."""

    def __init__(self, source: StoreFolder, run_id: str) -> None:
        self._source, self._run_id = source, run_id
        self.place = f"{mask_text(source.uri)} {run_id}".strip()
        self.name = ROLLOUTS
        self._known: tuple[RunRecord, RunItem] | None = None
        self._view: tuple[LightningStore, QueueView] | None = None
        self._facts: tuple[Path, FolderFacts] | None = None
        self.is_read = False
        """Whether the list has the run's numbers, and not only its record."""
        self.may_have_changed = True
        """Whether the numbers of the list may be older than the record."""

    async def _record(self) -> RunRecord | None:
        if not self._run_id:
            return None
        record = await (await self._source.open()).get_run_by_id(self._run_id)
        if record is None:
            raise RunError(f"{self.place} is no longer in its store")
        return record

    def note(self, record: RunRecord) -> None:
        """Take the run's record, which each writer of the run changes. Its numbers are those of before."""
        self.name = record.name
        known, item = self._known or (None, None)
        # writers whose clocks differ may leave the time of the last write as it is
        is_active = record.status == "running" and time.time() - record.update_time < ACTIVE
        self.may_have_changed = self.may_have_changed or known != record or is_active
        if item is None or known != record:
            numbers = {} if item is None else {name: getattr(item, name) for name in NUMBERS}
            self._known = (record, self._item_of(record, **numbers))

    async def read(self) -> None:
        """Read the numbers that the list shows."""
        if self._known is not None:
            record = self._known[0]
            self._take(record, await self._item(record))

    def take(self, versions: Sequence[PolicyVersion]) -> None:
        """Take the numbers that the list shows from the versions of the run's policies, in any order."""
        if self._known is None or not self.may_have_changed:
            return
        record = self._known[0]
        acting: Sequence[str] = record.config.get("acting") or ()
        by_number: dict[int, PolicyVersion] = {}
        for one in versions:
            if one.version not in by_number or one.policy in acting[:1]:
                by_number[one.version] = one
        ordered = [by_number[number] for number in sorted(by_number)]
        lines = [
            line for one in ordered for line in _lines(StepMetrics(step=one.version, values=dict(one.metrics)))
        ]
        item = self._item_of(
            record,
            step=ordered[-1].version,
            reward=ordered[-1].metrics.get("reward"),
            held_out=held_out_of(lines),
        )
        self._take(record, item)

    def _take(self, record: RunRecord, item: RunItem) -> None:
        self._known = (record, item)
        self.is_read, self.may_have_changed = True, False

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
        here = folder_on_this_machine(record)
        return msgspec.structs.replace(
            await self._item(record), key=key, folder_here=None if here is None else str(here)
        )

    async def _item(self, record: RunRecord) -> RunItem:
        page = await (await self._source.open()).query_metrics(self._run_id)
        last = page[-1] if page else StepMetrics(step=0)
        held_out = held_out_of(line for one in page for line in _lines(one))
        return self._item_of(record, step=last.step, reward=last.values.get("reward"), held_out=held_out)

    def _item_of(
        self, record: RunRecord, step: int = 0, reward: float | None = None, held_out: Sequence[HeldOut] = ()
    ) -> RunItem:
        """Return the run as one line, with these numbers."""
        config = record.config
        return RunItem(
            key="",
            name=record.name,
            folder=None,
            source=mask_text(self._source.uri),
            experiment=record.experiment,
            state=_STATES[record.status],
            algorithm=config.get("algorithm"),
            policy=policies_line(config.get("policy")),
            step=step,
            steps=config.get("steps"),
            reward=reward,
            held_out=list(held_out),
            began=record.start_time,
            updated=record.update_time,
            ended=record.end_time,
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
        """Return the store; of a store that several runs share, the part of this run."""
        store, record = await self._source.open(), await self._known_record()
        if record is None or not _is_shared(record):
            return store
        if self._view is None or self._view[0] is not store:
            self._view = (store, QueueView(store, self._run_id))
        return self._view[1]

    async def _known_record(self) -> RunRecord | None:
        """Return the run's record as it was read last."""
        return await self._record() if self._known is None else self._known[0]

    @property
    def others(self) -> int:
        """Number of other runs whose rollouts cannot be told apart from this run's, when the store was last read."""
        return 0 if self._known is not None and _is_shared(self._known[0]) else max(0, len(self._source.runs) - 1)

    async def facts(self) -> RunFacts:
        """Return which rollouts were trained, if the run's folder is on this machine; only it has these facts."""
        record = await self._known_record()
        path = None if record is None else folder_on_this_machine(record)
        if path is None:
            return run_facts_of(None)
        if self._facts is None or self._facts[0] != path:
            self._facts = (path, FolderFacts(RunFolder(path)))
        return self._facts[1].read()


def _is_shared(record: RunRecord) -> bool:
    """Whether other runs may use the store, too, so that the run has a queue of its own."""
    return record.config.get("store") is not None


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


def shortened(version: PolicyVersion) -> PolicyVersion:
    """Return a version with the numbers that the list shows, so that those of many runs can be held."""
    kept = {name: value for name, value in version.metrics.items() if name == "reward" or name.startswith(_HELD_OUT)}
    return PolicyVersion(run_id=version.run_id, policy=version.policy, version=version.version, metrics=kept)


def _sets(scores: Mapping[str, float], ending: str) -> dict[str, float | None]:
    return {
        name.removeprefix(_HELD_OUT).removesuffix(ending): value
        for name, value in scores.items()
        if name.endswith(ending)
    }
