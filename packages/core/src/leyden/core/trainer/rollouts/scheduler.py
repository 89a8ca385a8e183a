"""Where a step's groups come from: batches in step with the updates, one ahead of them, or groups as they finish.

Each knows its position in the run's tasks, which is part of every checkpoint, so that a run that was killed finishes
what was in flight and learns from nothing twice. Knows nothing of weights.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from leyden.core.algorithm.staleness import Pace, Window, restore_window, window_state
from leyden.core.trainer.rollouts.collector import Collected, Collector


class Progress(Protocol):
    """How far a run is."""

    @property
    def step(self) -> int:
        """Updates taken; also the version being served."""
        ...

    @property
    def steps(self) -> int:
        """Updates to take in all."""
        ...


class Batches(ABC):
    """Gives out one batch a step."""

    @abstractmethod
    async def next(self) -> Collected:
        """The next batch; it may have been begun before."""

    async def settle(self) -> None:
        """Return when new weights may be served."""
        return

    def step_taken(self) -> None:
        """Note that what was learned from the last batch is served."""
        return

    @contextmanager
    def paused(self) -> Generator[None]:
        """Begin nothing inside the block; what is in flight goes on."""
        yield

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Where in the run's tasks this is, between two steps, as JSON."""

    async def close(self) -> None:
        """Wait for nothing any more."""
        return


class InStep(Batches):
    """Each batch begins when it is asked for, and is drawn by the weights that will learn from it."""

    def __init__(self, collector: Collector, progress: Progress, position: Mapping[str, Any]) -> None:
        self._collector, self._progress = collector, progress
        self._batch: int = position.get("batch", 0)
        """The next one; runs ahead of the step when a batch had nothing to learn from."""

    async def next(self) -> Collected:
        """Run the next batch."""
        collected = await self._collector.train(self._batch, version=self._progress.step)
        self._batch += 1
        return collected

    def position(self) -> dict[str, Any]:
        """The number of the next batch."""
        return {"batch": self._batch}


@dataclass(frozen=True, slots=True)
class _Begun:
    """A batch in flight."""

    batch: int
    version: int
    """The weights that draw all of it."""
    collected: asyncio.Task[Collected]


class OneAhead(Batches):
    """While an update runs, the next batch is drawn by the weights from before it.

    New weights wait for the batch's end, so that each batch is of one version, and a checkpoint finds it complete.
    """

    def __init__(self, collector: Collector, progress: Progress, position: Mapping[str, Any]) -> None:
        self._collector, self._progress = collector, progress
        self._batch: int = position.get("batch", 0)
        ahead: tuple[int, int] | None = position.get("ahead")
        self._ahead = None if ahead is None else self._begin(*ahead)

    async def next(self) -> Collected:
        """Wait for the batch that was begun, and begin the one after it if a step is left to learn from it."""
        begun = self._ahead or self._begin_next()
        self._ahead = begun
        collected = await begun.collected
        self._ahead = self._begin_next() if self._progress.step + 1 < self._progress.steps else None
        return collected

    async def settle(self) -> None:
        """Wait until no rollout of the batch ahead is in flight."""
        if self._ahead is not None:
            await self._ahead.collected

    def position(self) -> dict[str, Any]:
        """The number of the next batch to begin; number and version of the one that is ahead."""
        ahead = None if self._ahead is None else [self._ahead.batch, self._ahead.version]
        return {"batch": self._batch, "ahead": ahead}

    async def close(self) -> None:
        """Wait no more for the batch ahead."""
        if self._ahead is not None:
            await _end([self._ahead.collected])

    def _begin_next(self) -> _Begun:
        begun = self._begin(self._batch, self._progress.step)
        self._batch += 1
        return begun

    def _begin(self, batch: int, version: int) -> _Begun:
        collecting = self._collector.train(batch, version=version, told=_nobody)
        return _Begun(batch, version, asyncio.create_task(collecting))


class AsTheyFinish(Batches):
    """Groups are in flight all the time; a batch is made of those that finish, and none gets older than the bound.

    A group is begun when a runner has a place for one of its rollouts, so that none ages in the queue; but not while a
    whole batch waits to be learned from, which would be older for every further one.
    """

    def __init__(self, collector: Collector, progress: Progress, window: Window, position: Mapping[str, Any]) -> None:
        self._collector, self._progress, self._window = collector, progress, window
        config = collector.config
        self._places = config.workers * config.concurrency
        self._running: dict[int, asyncio.Task[Collected]] = {}
        self._unfinished: dict[int, int] = {}
        """Rollouts of each running group that have not finished."""
        self._finished: dict[int, Collected] = {}
        """In the order in which they finished."""
        self._failed: asyncio.Task[Collected] | None = None
        self._news = asyncio.Event()
        self._paused = self._closed = False
        self._last = time.monotonic()
        if position:
            restore_window(window, position)
        for number in window.due:
            self._start(number)

    async def next(self) -> Collected:
        """Wait for a batch that leaves nobody behind; its seconds are those since the last one."""
        self._window.end_turn()
        self._fill()
        display, size = self._collector.display, self._window.size
        display.phase("rollouts", size)
        while (batch := self._window.choose(list(self._finished))) is None:
            display.advance(min(len(self._finished), size))
            self._news.clear()
            await self.settle()
            await self._news.wait()
        self._window.take(batch)
        whole = Collected()
        for number in batch:
            whole.include(self._finished.pop(number))
        self._fill()
        since, self._last = self._last, time.monotonic()
        whole.seconds = self._last - since
        return whole

    async def settle(self) -> None:
        """Raise if collecting has failed; new weights meet rollouts in flight."""
        if self._failed is not None:
            self._failed.result()

    def step_taken(self) -> None:
        """Let groups begin for a further step."""
        self._window.end_turn()
        self._fill()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Begin no group inside the block."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self._fill()

    def position(self) -> dict[str, Any]:
        """The window: which groups were begun and not learned from."""
        return window_state(self._window)

    async def close(self) -> None:
        """Wait for no group any more."""
        self._closed = True
        await _end(list(self._running.values()))

    def _fill(self) -> None:
        turns_left = self._progress.steps - self._progress.step
        while (
            not (self._paused or self._closed)
            and len(self._finished) < self._window.size
            and sum(self._unfinished.values()) < self._places
            and self._window.may_begin(turns_left)
        ):
            self._start(self._window.begin())

    def _start(self, number: int) -> None:
        self._unfinished[number] = self._collector.config.group_size
        running = asyncio.create_task(self._collector.group(number, self._told_by(number)))
        self._running[number] = running
        running.add_done_callback(lambda task: self._ended(number, task))

    def _told_by(self, number: int) -> Callable[[int], None]:
        def told(finished: int) -> None:
            self._unfinished[number] = self._collector.config.group_size - finished
            self._fill()

        return told

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
        self._news.set()


def make_batches(pace: Pace, collector: Collector, progress: Progress, position: Mapping[str, Any]) -> Batches:
    """The batches of a run that collects at `pace`, from `position` on; `{}` is the beginning."""
    if pace.loop == "sync":
        return InStep(collector, progress, position)
    if pace.loop == "one_off":
        return OneAhead(collector, progress, position)
    window = Window(size=collector.config.tasks_per_step, max_staleness=pace.max_staleness)
    return AsTheyFinish(collector, progress, window, position)


async def _end(tasks: list[asyncio.Task[Collected]]) -> None:
    """Cancel, and take notice of what they failed with: it was raised, or the run ends with something else."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _nobody(_finished: int) -> None:
    """Hears how many rollouts of a batch ahead have finished: the display shows the update meanwhile."""
    return
