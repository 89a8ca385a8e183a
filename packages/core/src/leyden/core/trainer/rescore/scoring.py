"""`ScoringProcess`: scores rollouts with a user's reward function in a process of its own, within limits.

A reward that exceeds its time is stopped with its process, and so is every process that it started. The next rollout is
scored in a new one.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import msgspec

from leyden.core.data.plain.recorded_form import FormLimits, recorded_form
from leyden.core.errors import UsageError
from leyden.core.masking import without_own_tokens
from leyden.core.trainer.rescore.messages import Job, Loaded, Score, Setup
from leyden.core.trainer.rescore.stored_rollouts import StoredRollout

LOADING_SECONDS = 120.0
"""Time limit for importing the reward function."""
_TASK_LIMITS = FormLimits(values=1_000_000, bytes=64 << 20, depth=100)


class ScoringLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one rollout's scoring."""

    seconds: float = 30.0
    memory: int = 4 << 30
    """Bytes that the reward may allocate, beyond those of the loaded function. Enforced on Linux."""


class ScoringProcess:
    """Scores with the function `reward`, given as an import string. Use it as a context manager.

    Entering it loads the function; raises UsageError where it cannot be loaded.
    """

    def __init__(
        self, reward: str, weights: Mapping[str, float] | None = None, limits: ScoringLimits | None = None
    ) -> None:
        self.reward = reward
        self.limits = limits or ScoringLimits()
        self._setup = Setup(reward=reward, weights=dict(weights or {}), memory=self.limits.memory)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def score(self, rollout: StoredRollout) -> Score:
        """Return the score of a rollout, or why there is none. Raises UsageError if the function no longer loads."""
        if rollout.obstacle or rollout.result is None:
            return Score(error=rollout.obstacle, kind="not stored")
        task = recorded_form(rollout.task, _TASK_LIMITS, secrets=True).text
        if task is None:
            return Score(error="the task is too large to be given to a reward again", kind="not stored")
        if self._connection is None:
            self._start()
        found = self._answer(Job(task=task, result=rollout.result), Score, self.limits.seconds)
        if isinstance(found, Score):
            return found
        if found is not None:
            return Score(error=found, kind="process ended")
        return Score(error=f"the reward was stopped after {self.limits.seconds:g} s", kind="time limit")

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            program = [sys.executable, "-P", "-m", "leyden.core.trainer.rescore.worker", str(theirs.fileno())]
            self._connection = Connection(ours.detach())
            self._process = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=without_own_tokens(os.environ),
                start_new_session=True,
            )
        loaded = self._answer(self._setup, Loaded, LOADING_SECONDS)
        if not isinstance(loaded, Loaded):
            problem = loaded or f"it took more than {LOADING_SECONDS:g} s"
            raise UsageError(f"reward {self.reward} cannot be loaded: {problem}")
        if loaded.problem:
            raise UsageError(loaded.problem)

    def _answer(self, message: msgspec.Struct, kind: type[Any], seconds: float) -> Any:
        """Send a message and return the answer; None after `seconds`; a text if the process ended.

        In both cases the process and those that it started are killed.
        """
        assert self._connection is not None
        try:
            self._connection.send_bytes(msgspec.json.encode(message))
            if self._connection.poll(seconds):
                return msgspec.json.decode(self._connection.recv_bytes(), type=kind)
        except (EOFError, OSError, msgspec.MsgspecError):
            return self._ending()
        self._stop()
        return None

    def _ending(self) -> str:
        """Return how the process ended."""
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        self._stop()
        if code is None:
            return "the reward closed the connection of its process"
        if code < 0:
            return f"the reward's process was killed by {_signal_name(-code)}"
        return f"the reward's process ended with exit code {code}"

    def _stop(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
