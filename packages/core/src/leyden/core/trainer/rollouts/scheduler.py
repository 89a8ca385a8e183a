"""Scheduler of training rollouts: supplies each step with groups.

Batches are collected in step with the updates, one batch ahead of them, or as groups that finish independently. Each
scheduler's position in the run's tasks is part of every checkpoint. A run that was killed therefore finishes its
rollouts in flight and learns from no rollout twice.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from leyden.core.algorithm.staleness import LoopKind, StalenessWindow, restore_window, window_state
from leyden.core.trainer.rollouts.collector import Collected, Collector


class Progress(Protocol):
    """Progress of a run."""

    @property
    def step(self) -> int:
        """Number of updates taken; also the version being served."""
        ...

    @property
    def steps(self) -> int:
        """Number of updates to take in all."""
        ...


class Batches(ABC):
    """Source of batches, one for each step."""

    @abstractmethod
    async def next(self) -> Collected:
        """Return the next batch, which may have been started before."""

    async def settle(self) -> None:
        """Return when new weights may be served."""
        return

    def step_taken(self) -> None:
        """Record that the weights learned from the last batch are served."""
        return

    @contextmanager
    def paused(self) -> Generator[None]:
        """Context manager: starts no rollout inside the block; those in flight continue."""
        yield

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Return the position in the run's tasks, between two steps, as JSON values."""

    async def close(self) -> None:
        """Stop waiting for rollouts in flight."""
        return


class SyncBatches(Batches):
    """Starts each batch on request, so that the weights that learn from it also draw it."""

    def __init__(self, collector: Collector, progress: Progress, position: Mapping[str, Any]) -> None:
        self._collector, self._progress = collector, progress
        self._batch: int = position.get("batch", 0)
        """Index of the next batch. It runs ahead of the step when batches had nothing to learn from."""

    async def next(self) -> Collected:
        """Run the next batch and return it."""
        collected = await self._collector.train(self._batch, version=self._progress.step)
        self._batch += 1
        return collected

    def position(self) -> dict[str, Any]:
        """Return the index of the next batch."""
        return {"batch": self._batch}


@dataclass(frozen=True, slots=True)
class _BatchInFlight:
    """Batch in flight."""

    batch: int
    version: int
    """Version of the weights that draw the whole batch."""
    collected: asyncio.Task[Collected]


class OneAheadBatches(Batches):
    """Collects the next batch during an update, with the weights from before that update.

    New weights are served only after that batch has finished. Each batch therefore has one version, and a checkpoint
    contains whole batches only.
    """

    def __init__(self, collector: Collector, progress: Progress, position: Mapping[str, Any]) -> None:
        self._collector, self._progress = collector, progress
        self._batch: int = position.get("batch", 0)
        ahead: tuple[int, int] | None = position.get("ahead")
        self._ahead = None if ahead is None else self._begin(*ahead)

    async def next(self) -> Collected:
        """Wait for the batch in flight and return it; start the next one if a step remains to learn from it."""
        in_flight = self._ahead or self._begin_next()
        self._ahead = in_flight
        collected = await in_flight.collected
        self._ahead = self._begin_next() if self._progress.step + 1 < self._progress.steps else None
        return collected

    async def settle(self) -> None:
        """Wait until no rollout of the batch ahead is in flight."""
        if self._ahead is not None:
            await self._ahead.collected

    def position(self) -> dict[str, Any]:
        """Return the index of the next batch to start, and index and version of the batch ahead."""
        ahead = None if self._ahead is None else [self._ahead.batch, self._ahead.version]
        return {"batch": self._batch, "ahead": ahead}

    async def close(self) -> None:
        """Cancel waiting for the batch ahead."""
        if self._ahead is not None:
            await _end([self._ahead.collected])

    def _begin_next(self) -> _BatchInFlight:
        in_flight = self._begin(self._batch, self._progress.step)
        self._batch += 1
        return in_flight

    def _begin(self, batch: int, version: int) -> _BatchInFlight:
        collecting = self._collector.train(batch, version=version, on_finished=_ignore)
        return _BatchInFlight(batch, version, asyncio.create_task(collecting))


class AsyncBatches(Batches):
    """Keeps groups in flight all the time, and forms batches of finished groups within the staleness bound.

    A group is started when a runner has capacity for one of its rollouts, so that groups do not age in the queue. No
    group is started while a whole batch waits to be learned from: each further group would make it older.
    """

    def __init__(
        self, collector: Collector, progress: Progress, window: StalenessWindow, position: Mapping[str, Any]
    ) -> None:
        self._collector, self._progress, self._window = collector, progress, window
        config = collector.config
        self._capacity = config.most_workers * config.concurrency
        self._running: dict[int, asyncio.Task[Collected]] = {}
        self._unfinished: dict[int, int] = {}
        """Number of unfinished rollouts of each running group."""
        self._finished: dict[int, Collected] = {}
        """Finished groups by number, in the order in which they finished."""
        self._failed: asyncio.Task[Collected] | None = None
        self._group_ended = asyncio.Event()
        self._paused = self._closed = False
        self._last = time.monotonic()
        if position:
            restore_window(window, position)
        for number in window.due:
            self._start(number)

    async def next(self) -> Collected:
        """Wait for a batch and return it. Its `seconds` count from the previous batch.

        The batch is chosen so that all other groups can still be learned from within the staleness bound.
        """
        self._window.end_turn()
        self._fill()
        display, size = self._collector.display, self._window.size
        display.phase("rollouts", size)
        while (batch := self._window.choose(list(self._finished))) is None:
            display.advance(min(len(self._finished), size))
            self._group_ended.clear()
            await self.settle()
            await self._group_ended.wait()
        self._window.take(batch)
        whole = Collected()
        for number in batch:
            whole.include(self._finished.pop(number))
        self._fill()
        since, self._last = self._last, time.monotonic()
        whole.seconds = self._last - since
        return whole

    async def settle(self) -> None:
        """Raise the error of a failed group, if any. Does not wait: new weights may be served during rollouts."""
        if self._failed is not None:
            self._failed.result()

    def step_taken(self) -> None:
        """Start groups for a further step."""
        self._window.end_turn()
        self._fill()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Context manager: starts no group inside the block."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self._fill()

    def position(self) -> dict[str, Any]:
        """Return the window state: the groups that were started and not yet learned from."""
        return window_state(self._window)

    async def close(self) -> None:
        """Cancel waiting for all groups."""
        self._closed = True
        await _end(list(self._running.values()))

    def _fill(self) -> None:
        turns_left = self._progress.steps - self._progress.step
        while (
            not (self._paused or self._closed)
            and len(self._finished) < self._window.size
            and sum(self._unfinished.values()) < self._capacity
            and self._window.may_begin(turns_left)
        ):
            self._start(self._window.begin())

    def _start(self, number: int) -> None:
        self._unfinished[number] = self._collector.config.group_size
        running = asyncio.create_task(self._collector.group(number, self._progress_callback(number)))
        self._running[number] = running
        running.add_done_callback(lambda task: self._ended(number, task))

    def _progress_callback(self, number: int) -> Callable[[int], None]:
        def on_finished(finished: int) -> None:
            self._unfinished[number] = self._collector.config.group_size - finished
            self._fill()

        return on_finished

    def _ended(self, number: int, task: asyncio.Task[Collected]) -> None:
        del self._running[number], self._unfinished[number]
        if task.cancelled():
            return
        if task.exception() is None:
            self._finished[number] = task.result()
            self._fill()
        else:
            self._failed = self._failed or task
            self._closed = True
        self._group_ended.set()


def make_batches(pace: LoopKind, collector: Collector, progress: Progress, position: Mapping[str, Any]) -> Batches:
    """Return the scheduler for `pace`, starting at `position`; an empty mapping is the start of the run."""
    if pace.loop == "sync":
        return SyncBatches(collector, progress, position)
    if pace.loop == "one_off":
        return OneAheadBatches(collector, progress, position)
    window = StalenessWindow(size=collector.config.tasks_per_step, max_staleness=pace.max_staleness)
    return AsyncBatches(collector, progress, window, position)


async def _end(tasks: list[asyncio.Task[Collected]]) -> None:
    """Cancel the tasks and discard their errors: these were raised before, or the run ends with another error."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _ignore(_finished: int) -> None:
    """Ignore the number of finished rollouts of a batch ahead: the display shows the update meanwhile."""
    return
