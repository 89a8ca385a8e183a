"""`ForegroundCommand`: a command that is one rollout, in the user's terminal: what `leyden exec` runs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Generator, Sequence
from typing import Any

from leyden.core.data.rollout import Task
from leyden.core.errors import LeydenError, RewardError, UsageError
from leyden.core.runner.commands.command import (
    CommandAgent,
    CommandFailed,
    OutputTail,
    environment,
    run_process,
    task_json,
)
from leyden.core.runner.commands.process import GRACE_SECONDS, CommandProcess, Exit, Streams
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.wire.unsupported_clients import COMMAND
from leyden.core.trainer.rollouts.recorded import RecordedRollout

TIMED_OUT = 124
"""Exit code after a timeout; the same as that of the program `timeout`."""
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class ForegroundCommand(CommandAgent):
    """Command that writes to the output of this process and receives the same signals.

    With `has_task`, placeholders in the arguments are filled and the standard input is the task. Without it, arguments
    are unchanged and the standard input is that of this process. With `keep_output`, the output is also the result.
    """

    def __init__(self, arguments: Sequence[str], env: Sequence[str] = (), *, has_task: bool, keep_output: bool) -> None:
        super().__init__(arguments, env)
        self.ended: Exit | None = None
        """Exit status of the command; None until it has ended."""
        self._has_task, self._keep_output = has_task, keep_output
        self._process: CommandProcess | None = None

    def filled(self, task: Task) -> list[str]:
        """Return the arguments for `task`."""
        return super().filled(task) if self._has_task else list(self.arguments)

    async def run(self, task: Task, attempt: OpenAttempt) -> Any:
        """Run the command; return its output with `keep_output`, else None.

        Raises CommandFailed for a nonzero exit code.
        """
        attempt.extra[COMMAND] = self.arguments[0]
        kept = OutputTail()

        def keep(piece: bytes) -> None:
            kept(piece)
            _write_out(piece)

        streams = Streams(
            stdin=task_json(task) if self._has_task else None,
            stdout=keep if self._keep_output else None,
            terminal=not self._has_task and _holds_terminal(),
        )
        sys.stdout.flush()
        self._process = CommandProcess(self.filled(task), environment(task, attempt, env=self.env), streams)
        with _forwarding_signals(self._process):
            self.ended = await run_process(self._process)
        if self.ended.code != 0:
            raise CommandFailed(f"{self.arguments[0]} {self.ended}")
        return kept.text() if self._keep_output else None

    def outcome(self, recorded: RecordedRollout) -> int:
        """Return the exit code for `recorded`, once all processes of the command have ended.

        It is the command's own code, or 124 after a timeout. Raises the UsageError or LeydenError that prevented the
        command from running, or the RewardError of its reward.
        """
        if self._process is not None:
            self._process.wait_gone(2 * GRACE_SECONDS)
        attempt, _ = recorded.attempts[-1]
        error: dict[str, str] = attempt.metadata.get("error") or {}
        kind, message = error.get("kind"), error.get("message", "")
        if kind == "timeout" and (self.ended is None or self.ended.code != 0):
            return TIMED_OUT
        if kind == "reward":
            raise RewardError(message)
        if self.ended is None:
            raise UsageError(message) if kind == "input" else LeydenError(message or "the command was not run")
        return self.ended.shell_code


@contextlib.contextmanager
def _forwarding_signals(process: CommandProcess) -> Generator[None]:
    """Context manager: forwards signals of this process to the command. Ignored signals stay ignored."""
    loop = asyncio.get_running_loop()
    forwarded = [number for number in FORWARDED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in forwarded:
        loop.add_signal_handler(number, process.send, number)
    try:
        yield
    finally:
        for number in forwarded:
            loop.remove_signal_handler(number)


def _holds_terminal() -> bool:
    """Whether standard input is a terminal and the Leyden process is in its foreground process group."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # the terminal of another session
        return False


def _write_out(piece: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the reader has closed the pipe
        while piece:
            piece = piece[os.write(1, piece) :]
