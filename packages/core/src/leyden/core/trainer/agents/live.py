"""Live agents: `Trainer.fit` with an agent object spawns the learner process and runs the agent in this process."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from leyden.core import errors
from leyden.core.errors import LeydenError, TrainingError
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.preflight.report import CheckReport, load_report
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.serving.address import RunAddress

Keys = Callable[[], Mapping[str, str]]


class _Message(msgspec.Struct, frozen=True):
    address: RunAddress | None = None
    finished: bool = False
    done: bool = False
    error: dict[str, str] | None = None


def train_with_live_agent(
    folder: RunFolder, config: RunConfig, agent: LoadedAgent, shown: str, keys: Keys
) -> RunReport:
    """Train while the agent object runs in this process, on an event loop of its own; return the run's report.

    `keys` returns the variables that the learner process gets besides those of this process. It is called once the
    processes of the agent have been forked, so it may start threads.
    """
    _run_child("train", folder, config, agent, shown, keys)
    report = folder.report()
    assert report is not None
    return report


def check_with_live_agent(
    folder: RunFolder, config: RunConfig, agent: LoadedAgent, shown: str, keys: Keys
) -> CheckReport:
    """Check the run in the same way, and return the check's report."""
    _run_child("check", folder, config, agent, shown, keys)
    return load_report(folder.check_file)


def _run_child(work: str, folder: RunFolder, config: RunConfig, agent: LoadedAgent, shown: str, keys: Keys) -> None:
    processes = LiveProcesses(config.isolation, agent)
    run = _Child(work, folder, shown, keys)
    try:
        message = run.receive()
        if message.address is not None:
            run.finish(AgentThread(message.address, agent, config.concurrency, processes, run.ended))
    finally:
        run.close()
        processes.end()


class AgentThread(threading.Thread):
    """Thread that runs a live agent on its own event loop until `ended` is set.

    `address` is that of one machine (see `RunAddress.machine`), and `fail_closed` as in `run_live`. `check` raises the
    error that ended the agent's runner.
    Set `is_lost` before `ended` if the learner process is gone: nothing more is then sent to its store.
    """

    is_lost = False

    def __init__(
        self,
        address: RunAddress,
        agent: LoadedAgent,
        concurrency: int,
        processes: LiveProcesses,
        ended: threading.Event,
        *,
        fail_closed: bool = True,
    ) -> None:
        super().__init__(name="leyden-live-agent")
        self._address, self._agent, self._processes = address, agent, processes
        self._concurrency, self._ended, self._fail_closed = concurrency, ended, fail_closed
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run the agent; this is the thread's body."""
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self._failure = error

    def check(self) -> None:
        """Raise the error that ended the runner, if any."""
        if self._failure is not None:
            raise self._failure

    async def _work(self) -> None:
        from leyden.core.runner.workers.live import run_live
        from leyden.core.store.http.client import HttpStore

        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        store = HttpStore(f"{self._address.url}/store", self._address.token)

        def watch() -> None:
            self._ended.wait()
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                if self.is_lost:
                    asyncio.run_coroutine_threadsafe(store.close(), loop)
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=watch, daemon=True).start()
        await run_live(
            self._agent,
            store,
            gateway_url=self._address.url,
            routes=self._address.routes,
            concurrency=self._concurrency,
            processes=self._processes,
            stopped=stopped,
            fail_closed=self._fail_closed,
        )


class ChildLost(TrainingError):
    """Raised when the learner process ended without a message, for example because it was killed."""


class _Child:
    """Learner process, and the pipe through which it sends messages."""

    def __init__(self, work: str, folder: RunFolder, shown: str, keys: Keys) -> None:
        reading, writing = os.pipe()
        command = [
            sys.executable,
            "-m",
            "leyden.core.trainer.agents.learner_process",
            work,
            str(folder.path),
            str(writing),
            shown,
        ]
        command.append(str(os.getpid()))
        variables = {**os.environ, **keys()}
        self._process = subprocess.Popen(command, pass_fds=[writing], stdin=subprocess.PIPE, env=variables)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")
        self.ended = threading.Event()

    def receive(self) -> _Message:
        """Return the next message; raises the error that the child sent, or ChildLost when it ended without one."""
        line = self._pipe.readline()
        if not line:
            raise ChildLost(f"the learning process {self._how_it_ended()}; continue with `Trainer.resume`")
        message = msgspec.json.decode(line, type=_Message)
        if message.error is not None:
            kind = getattr(errors, message.error.get("class", ""), LeydenError)
            raise kind(message.error.get("message", ""))
        return message

    def finish(self, agent: AgentThread) -> None:
        """Run the agent's thread until the child reports that it may stop, then wait for the child's last message."""
        agent.start()
        try:
            self.receive()
        except ChildLost:
            agent.is_lost = True
            raise
        finally:
            self.ended.set()
            agent.join()
            self._close_input()
        agent.check()
        self.receive()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code} without a message"

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        """End the child process if it still runs."""
        self.ended.set()
        self._close_input()
        if self._process.poll() is None:
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.terminate()
                self._process.wait()
        self._pipe.close()
