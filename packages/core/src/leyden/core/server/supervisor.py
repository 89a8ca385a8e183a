"""Supervisor: the runs of a server, their queue and their processes.

Runs start in the order of their submission, each when its budget fits into what is left. A run that does not fit makes
those after it wait, so that a large run is not passed for ever.

The folder of a run says what its sessions did. Its record says whether it is to go on. After the end of this process,
of a run's process or of the machine, both together determine what happens next: the process is still there, or the run
has ended, or a new process resumes it.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.data.rollout import Task
from leyden.core.errors import LeydenError, RunError, UsageError
from leyden.core.masking import mask_text
from leyden.core.server.budget import Budget, check_fits, cores_of, free_slots, shown, why_not
from leyden.core.server.process import RunProcess, boot_id, start_time
from leyden.core.server.records import Outcome, Records, RunRecord, Session
from leyden.core.server.session_command import SessionPlan, free_port, session_command, session_environment
from leyden.core.server.status import RunStatus, ServedState, is_written_since, state_of, status_of, steps_taken
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.launch import ResumeChanges, change_run, validated
from leyden.core.trainer.run_folder.folder import RunFolder, is_free
from leyden.core.trainer.run_folder.run_lock import lock_holder

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
MEMORY_SECONDS = 1.0
"""Seconds between two looks whether a run may exceed its budget of memory."""
EXACT_SECONDS = 10.0
"""Seconds between two measurements of the memory that a run may not exceed: reading page tables stops its processes."""
MOST_KILLS = 5
"""Number of sessions in a row that may be killed without a new step before a run is not resumed any more."""
STOP_SECONDS = 60.0
"""Time that processes have to end when the server stops; what is left is killed."""


class NoSuchRun(RunError):
    """The server has no run of this name."""


class Supervisor:
    """The runs in one folder. All methods are called on one event loop."""

    def __init__(self, runs: Path, total: Budget, plan: SessionPlan) -> None:
        self.runs, self.total, self._plan = runs.resolve(), total, plan
        self._store = Records(self.runs)
        self._lock = self._store.lock_file()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise RunError(f"another leyden serve has the runs in {runs}: stop it, or give another --runs") from None
        self._records: dict[str, RunRecord] = {}
        self._processes: dict[str, RunProcess] = {}
        self._memory: dict[str, tuple[int, float]] = {}
        """Bytes that the processes of a run use, and when they were measured."""
        self._waits: dict[str, str] = {}
        self._changing: set[str] = set()
        """Runs whose folder is being written, rolled back or removed."""
        self._wake, self._closing = asyncio.Event(), False
        self._task: asyncio.Task[None] | None = None

    # --- Life

    async def start(self) -> None:
        """Read the records, go on with the runs of an earlier server, and begin to supervise."""
        for record in self._store.read():
            if not (self.runs / record.name / "config.yaml").exists():
                self._store.remove(record.name)  # the server was killed before the folder was whole
                continue
            self._records[record.name] = record
            self._recover(record)
        self._task = asyncio.create_task(self._supervise(), name="leyden serve supervisor")

    def close(self) -> None:
        """Start no further process, and let no request wait."""
        self._closing = True

    async def stop(self) -> None:
        """Stop all runs and wait for their processes. They go on when the server starts again."""
        self.close()
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
        give_up = time.monotonic() + STOP_SECONDS
        while self._processes and time.monotonic() < give_up:
            self._collect()
            await asyncio.sleep(TICK_SECONDS / 5)
        for process in self._processes.values():
            process.kill()
        await self.release()

    async def release(self) -> None:
        """End the supervision alone; processes of runs go on, for a server that starts later."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for process in self._processes.values():
            process.leave()
        os.close(self._lock)

    async def _supervise(self) -> None:
        measured, last = 0.0, ""
        while not self._closing:
            try:
                self._collect()
                if time.monotonic() - measured >= MEMORY_SECONDS:
                    await self._watch_memory()
                    measured = time.monotonic()
                self._start_queued()
            except Exception as error:  # what is wrong with one run must not end the supervision of the others
                if str(error) != last:
                    logger.warning("a run cannot be supervised: %s", str(error) or type(error).__name__)
                last = str(error)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()

    # --- What clients request

    async def submit(
        self, config: RunConfig, tasks: list[Task], held_out: Mapping[str, list[Task]], budget: Budget
    ) -> RunStatus:
        """Add a run to the queue. Raises UsageError for one that cannot work, and RunError for a name that is taken."""
        check_fits(budget, self.total)
        config = self._plan.placed(config, port := free_port(self._plan.host_of(config)))
        config = await asyncio.to_thread(validated, config, tasks)
        name = config.name
        if name in self._records or name in self._changing or not is_free(self.runs / name):
            raise RunError(
                f"run {name!r} exists on this server; resume it, remove it with `leyden runs remove {name}`, or choose "
                "another --name"
            )
        order = max((record.order for record in self._records.values()), default=0) + 1
        record = RunRecord(name=name, order=order, submitted=time.time(), budget=budget, port=port)
        self._changing.add(name)
        self._store.write(record)
        try:
            await asyncio.to_thread(RunFolder.create, self.runs, config, tasks, dict(held_out))
        except BaseException:
            self._store.remove(name)
            raise
        finally:
            self._changing.discard(name)
        self._records[name] = record
        self._start_queued()
        return self.status(name)

    def stop_run(self, name: str) -> RunStatus:
        """Request that a run stops; returns at once. Raises RunError for a run that has ended."""
        record = self.record(name)
        if not record.wanted:
            if record.session is None:
                raise RunError(f"run {name!r} is {self.status(name).state} already")
            return self.status(name)
        record.wanted = False
        if (process := self._processes.get(name)) is None:
            record.outcome = Outcome(state="stopped", reason="requested while it waited in the queue")
        self._write(record)
        if process is not None:
            process.signal(signal.SIGTERM)
        return self.status(name)

    async def resume(self, name: str, changes: ResumeChanges, budget: Budget | None = None) -> RunStatus:
        """Put a run into the queue that has ended. Changes of device and settings are written to its `config.yaml`.

        Raises RunError for a run that does not need it, and UsageError for a change that cannot work.
        """
        record = self.record(name)
        self._check_free(name)
        if record.wanted or record.session is not None:
            raise RunError(f"run {name!r} is {self.status(name).state}; stop it first to resume it with other settings")
        folder = RunFolder(self.runs / name)
        if folder.is_in_use():
            raise RunError(f"run {name!r} is being trained by another command")
        status, steps = self.status(name), changes.steps
        if steps is not None and steps < status.step:
            raise UsageError(f"run {name!r} has taken {status.step} steps; give --steps above that to go on")
        if status.state == "finished" and (steps is None or steps <= status.step):
            raise RunError(f"run {name!r} is finished after {status.step} steps; give --steps above that to go on")
        if budget is not None:
            check_fits(budget, self.total)
        self._changing.add(name)
        try:
            await asyncio.to_thread(change_run, self.runs, name, changes)
        finally:
            self._changing.discard(name)
        record.budget = budget or record.budget
        record.steps = steps if steps is not None else record.steps
        record.wanted, record.kills, record.outcome = True, 0, None
        record.order = max(other.order for other in self._records.values()) + 1
        self._write(record)
        self._start_queued()
        return self.status(name)

    async def roll_back(self, name: str, version: str) -> dict[str, Any]:
        """Return a run to an earlier version; raises RunError while it is queued or running."""
        from leyden.core.trainer.run_folder.models import Models
        from leyden.core.trainer.run_folder.rollback import roll_back

        record = self.record(name)
        self._check_free(name)
        if record.wanted or record.session is not None:
            raise RunError(f"run {name!r} is {self.status(name).state}: stop it before you roll it back")
        self._changing.add(name)
        try:
            models = await asyncio.to_thread(Models.open, self.runs, name)
            back = await asyncio.to_thread(roll_back, models, models.find(version))
        finally:
            self._changing.discard(name)
        record.outcome, record.kills = None, 0
        self._write(record)
        return msgspec.to_builtins(back)

    async def remove(self, name: str) -> None:
        """Delete a run that has ended, with its folder. Its rollouts in a shared store stay there."""
        import shutil

        record = self.record(name)
        self._check_free(name)
        folder = RunFolder(self.runs / name)
        if record.wanted or record.session is not None or folder.is_in_use():
            raise RunError(f"run {name!r} is {self.status(name).state}: stop it before you remove it")
        del self._records[name]
        self._changing.add(name)
        try:
            await asyncio.to_thread(shutil.rmtree, folder.path, ignore_errors=True)
            self._store.remove(name)  # last: a server killed before this finds no folder, and removes the record
        finally:
            self._changing.discard(name)

    def statuses(self) -> list[RunStatus]:
        """Return the status of every run, in the order of the queue."""
        return [self.status(record.name) for record in sorted(self._records.values(), key=lambda one: one.order)]

    def status(self, name: str) -> RunStatus:
        """Return the status of a run; raises NoSuchRun if there is none."""
        record = self.record(name)
        used = self._memory.get(name) if name in self._processes else None
        return status_of(record, RunFolder(self.runs / name), self._waits.get(name), used and used[0])

    def state(self, name: str) -> ServedState:
        """Return the state of a run, which takes no reading of its metrics; raises NoSuchRun if there is none."""
        return state_of(self.record(name), RunFolder(self.runs / name), self._waits.get(name))[0]

    def record(self, name: str) -> RunRecord:
        """Return the record of a run; raises NoSuchRun, which names the known runs, if there is none."""
        if (found := self._records.get(name)) is None:
            known = ", ".join(self._records) or "none yet"
            raise NoSuchRun(f"this server has no run {name!r}; its runs: {known}")
        return found

    def output(self, name: str) -> Path:
        """Path of what the processes of a run printed."""
        self.record(name)
        return self._store.output(name)

    # --- Sessions

    def _recover(self, record: RunRecord) -> None:
        """Go on with what an earlier server has left of a run."""
        if (session := record.session) is None:
            return
        if (process := RunProcess.of(session)) is not None:
            self._processes[record.name] = process
            logger.info("run %s goes on in process %d", record.name, session.pid)
            if not record.wanted:
                process.signal(signal.SIGTERM)
            return
        self._end_session(record, None, after_gap=True)

    def _collect(self) -> None:
        """End the sessions whose processes have ended."""
        for name, process in [*self._processes.items()]:
            if not process.is_alive():
                del self._processes[name]
                self._end_session(self._records[name], process.exit_code)

    def _end_session(self, record: RunRecord, exit_code: int | None, *, after_gap: bool = False) -> None:
        """Decide from the folder what became of a session, and whether another one follows.

        `after_gap`: the process ended while there was no server, for instance with the machine. What requested its end
        did not mean the run, so that it goes on.
        """
        folder, session = RunFolder(self.runs / record.name), record.session
        assert session is not None
        record.session = None
        if (holder := lock_holder(folder.path)) is not None and holder.pid != session.pid:
            self._write(record)  # refused, since another process trains the run, which is adopted next
            return
        self._memory.pop(record.name, None)
        outcome = self._outcome(record, folder, session.began, exit_code)
        was_stopped_with_server = outcome.state == "stopped" and record.wanted and (self._closing or after_gap)
        if outcome.state == "interrupted" and record.wanted:
            step = steps_taken(folder)
            record.kills = 1 if step > session.step else record.kills + 1
            if record.kills < MOST_KILLS:
                logger.warning("the process of run %s was killed; the run is resumed", record.name)
                self._write(record)
                return
            again = f"its process was killed {record.kills} times in a row without a new step"
            outcome = Outcome(state="interrupted", reason=again)
        if was_stopped_with_server:
            self._write(record)
            return
        record.wanted, record.outcome = False, outcome
        self._write(record)
        logger.info("run %s is %s%s", record.name, outcome.state, f": {outcome.reason}" if outcome.reason else "")

    def _outcome(self, record: RunRecord, folder: RunFolder, began: float, exit_code: int | None) -> Outcome:
        if record.outcome is not None:  # set by what killed it
            return record.outcome
        if is_written_since(folder.report_file, began):
            report = folder.report()
            return Outcome(state="finished", reason=None if report is None else report.stopped_early)
        if is_written_since(folder.session_stop_file, began):
            return Outcome(state="stopped", reason=folder.session_stop())
        if is_written_since(folder.session_error_file, began):
            return Outcome(state="failed", reason=folder.session_error())
        if exit_code is not None and exit_code > 0:
            return Outcome(state="failed", reason=self._last_line(record.name))
        killed = "its process was killed" if record.wanted else "its process was killed while it stopped"
        return Outcome(state="interrupted" if record.wanted else "stopped", reason=killed)

    def _last_line(self, name: str) -> str:
        with self._store.output(name).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return mask_text(lines[-1].removeprefix("leyden: ")) if lines else "its process ended without a message"

    def _start_queued(self) -> None:
        """Start the runs at the head of the queue that fit."""
        self._waits.clear()
        if self._closing:
            return
        behind: str | None = None
        for record in sorted(self._records.values(), key=lambda one: one.order):
            if not record.wanted or record.session is not None or record.name in self._changing:
                continue
            if behind is not None:
                self._waits[record.name] = f"waits behind run {behind}"
                continue
            if (why := why_not(record.budget, self.total, *self.left)) is not None:
                self._waits[record.name], behind = why, record.name
                continue
            folder = RunFolder(self.runs / record.name)
            if folder.is_in_use():
                if not self._adopt(record, folder):
                    self._waits[record.name] = "waits for the end of another process that trains it"
                continue
            self._start(record, folder)

    def _adopt(self, record: RunRecord, folder: RunFolder) -> bool:
        """Take over the process that trains a run, which a server started that was killed before it could record it."""
        holder = lock_holder(folder.path)
        started = None if holder is None or not holder.is_here() else start_time(holder.pid)
        if holder is None or started is None:
            return False
        session = Session(
            pid=holder.pid, start_time=started, boot=boot_id(), began=time.time(), step=steps_taken(folder)
        )
        record.session, record.outcome = session, None
        self._processes[record.name] = RunProcess(session)
        self._write(record)
        return True

    def _start(self, record: RunRecord, folder: RunFolder) -> None:
        slots = free_slots(self.total, [session.slots for session in self._sessions()])[: record.budget.cores]
        try:
            self._plan.check_port(folder, record)
            process = RunProcess.start(
                session_command(record, self.runs, self._plan),
                folder=self._plan.project,
                output=self._store.output(record.name),
                environment=session_environment(record, self._plan),
                cores=cores_of(slots),
                slots=slots,
                step=steps_taken(folder),
            )
        except (LeydenError, OSError) as error:
            record.wanted, record.outcome = False, Outcome(state="failed", reason=f"it could not be started: {error}")
            self._write(record)
            return
        record.session, record.outcome = process.session, None
        self._processes[record.name] = process
        self._write(record)
        logger.info("run %s trains in process %d", record.name, process.session.pid)

    def _sessions(self) -> list[Any]:
        return [record.session for record in self._records.values() if record.session is not None]

    @property
    def is_closing(self) -> bool:
        """Whether the server is about to end."""
        return self._closing

    @property
    def left(self) -> tuple[int, int]:
        """Bytes of memory and number of cores that no running run has."""
        running = [record.budget for record in self._records.values() if record.session is not None]
        memory = self.total.memory - sum(budget.memory for budget in running)
        return memory, self.total.cores - sum(budget.cores for budget in running)

    async def _watch_memory(self) -> None:
        """Measure the memory of runs that may exceed their budgets or were not measured lately; kill those that do."""
        for name, process in [*self._processes.items()]:
            most, record = await asyncio.to_thread(process.memory_at_most), self._records.get(name)
            was_measured = name in self._memory and time.monotonic() - self._memory[name][1] < EXACT_SECONDS
            if was_measured and record is not None and most <= record.budget.memory:
                continue
            used, record = await asyncio.to_thread(process.memory), self._records.get(name)
            if record is None or record.session is not process.session:
                continue
            self._memory[name] = used, time.monotonic()
            if used > record.budget.memory:
                reason = (
                    f"its processes used {shown(used)} of memory, and its budget is {shown(record.budget.memory)}: "
                    f"resume it with a larger --memory, or with settings that need less"
                )
                logger.warning("run %s is killed: %s", name, reason)
                record.wanted, record.outcome = False, Outcome(state="failed", reason=reason)
                self._write(record)
                process.kill()

    def _check_free(self, name: str) -> None:
        if name in self._changing:
            raise RunError(f"run {name!r} is being changed by another request; try again")

    def _write(self, record: RunRecord) -> None:
        self._store.write(record)
        self._wake.set()
