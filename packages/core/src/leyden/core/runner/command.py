"""`CommandAgent`: a command line as an agent, in whatever language. Knows nothing of queues or rewards.

The command is told of its attempt by its environment, as any client of an OpenAI-style endpoint would be, so it needs
no line about Leyden. Provider keys that are known by name are taken out of that environment.
"""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leyden.core.data.rollout import Task
from leyden.core.errors import AgentNotFound, TaskError, UsageError
from leyden.core.runner.command_process import CommandProcess, Exit, Streams
from leyden.core.runner.task_input import row_of
from leyden.core.runner.threads import in_thread
from leyden.core.tracing.child_environment import of_command
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.out_of_reach import COMMAND

OUTPUT_BYTES = 1 << 20
"""Of the standard output, so many bytes are kept: the last, where an answer is."""
ERROR_BYTES = 64 << 10
"""Of the standard error, so many bytes of an attempt reach the log: the first."""
LAST_LINE_CHARACTERS = 300
TASK_BYTES = 100_000
"""A longer task is on the standard input only: a system refuses a variable of more than 128 kB."""

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class CommandFailed(Exception):
    """A command did not end well; the message is one line."""


class CommandAgent:
    """Runs `arguments`, without a shell, once for each attempt; what it prints is its result.

    `{key}` in an argument stands for that key of the task: a text as it is, anything else as JSON; `{{` and `}}` are
    braces. Raises UsageError when there is no command, AgentNotFound when there is no such program.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)
        if not self.arguments or not self.arguments[0]:
            raise UsageError("there is no command to run")
        program = self.arguments[0]
        if not _PIECE.search(program) and shutil.which(program) is None:
            raise AgentNotFound(f"there is no program {program!r} to run: no such file, or none on the PATH")

    def __repr__(self) -> str:
        return f"CommandAgent({list(self.arguments)!r})"

    def filled(self, task: Task) -> list[str]:
        """The arguments for `task`. Raises TaskError, naming the keys there are, where one has no value."""
        return [_filled(argument, task) for argument in self.arguments]

    async def run(self, task: Task, attempt: OpenAttempt) -> Any:
        """Run the command and return what it printed, without white space around it.

        Raises CommandFailed when its exit code is not 0. Cancelled, it ends the command and all it has started.
        """
        attempt.extra[COMMAND] = self.arguments[0]  # its calls do not pass by here: the gateway records them
        output, errors = Tail(), _ErrorLog(attempt.rollout_id)
        streams = Streams(stdin=task_json(task), stdout=output, stderr=errors)
        command = self.filled(task)
        ended = await run_process(CommandProcess(command, environment(task, attempt), streams))
        errors.close()
        result = output.text()
        if output.lost:
            errors.say(f"[the first {output.lost} bytes that it printed are left out of its result]")
        if ended.code != 0:
            raise CommandFailed(f"{command[0]} {ended}" + (f": {errors.last}" if errors.last else ""))
        return result


async def run_process(process: CommandProcess) -> Exit:
    """Run `process` to its end; cancelled, end it first."""
    running = asyncio.ensure_future(in_thread(process.run))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        process.end()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # nobody asks any more how it ended
        raise


def environment(task: Task, attempt: OpenAttempt, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (this process's own, if not given) without provider keys, and what leads a client to the gateway."""
    variables = of_command(os.environ if base is None else base, attempt)
    variables |= {"LEYDEN_ROLLOUT_ID": attempt.rollout_id, "LEYDEN_ATTEMPT_ID": attempt.attempt_id}
    variables.pop("LEYDEN_TASK", None)
    text = task_json(task)
    if len(text) <= TASK_BYTES:
        variables["LEYDEN_TASK"] = text.decode()
    return variables


def _filled(argument: str, task: Task) -> str:
    return _PIECE.sub(lambda found: _value(found, argument, task), argument)


def _value(found: re.Match[str], argument: str, task: Task) -> str:
    if found[0] in ("{{", "}}"):
        return found[0][0]
    row, key = row_of(task), found[1]
    if key and key in row:
        return row[key] if isinstance(row[key], str) else task_json(row[key]).decode()
    keys = f"the task has the keys {', '.join(map(str, row)) or '(none)'}" if row else "the task has no keys"
    wanted = f"the key {key!r}" if key else "a key"
    raise TaskError(f"{keys}; the argument {argument!r} asks for {wanted} (a brace itself is written {{{{ or }}}})")


def task_json(task: Task) -> bytes:
    """A task, or a value in one, as JSON."""
    return msgspec.json.encode(task)


class Tail:
    """Keeps the end of what is written: the last `OUTPUT_BYTES`."""

    def __init__(self) -> None:
        self.lost = 0
        """So many bytes went before."""
        self._kept = bytearray()

    def __call__(self, piece: bytes) -> None:
        """Take what was written next."""
        self._kept += piece
        if len(self._kept) > 2 * OUTPUT_BYTES:
            self._cut()

    def text(self) -> str:
        """What was kept, as text without white space around it."""
        self._cut()
        return self._kept.decode(errors="replace").strip()

    def _cut(self) -> None:
        beyond = max(0, len(self._kept) - OUTPUT_BYTES)
        self.lost += beyond
        del self._kept[:beyond]


class _ErrorLog:
    """Passes lines on to this process's own standard error, each with the rollout it comes from, and keeps the last."""

    def __init__(self, rollout_id: str) -> None:
        self.last = ""
        self._rollout_id, self._part, self._left = rollout_id, b"", ERROR_BYTES

    def __call__(self, piece: bytes) -> None:
        *lines, rest = (self._part + piece).split(b"\n")
        self._part = rest[-ERROR_BYTES:]
        for line in lines:
            self._pass_on(line)

    def close(self) -> None:
        """There will be no more: what is left is a line too."""
        self._pass_on(self._part)
        self._part = b""

    def say(self, text: str) -> None:
        """Write a line of our own about the command."""
        sys.stderr.write(f"{self._rollout_id}: {text}\n")

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()
        if not text:
            return
        self.last = text[:LAST_LINE_CHARACTERS]
        if self._left <= 0:
            return
        self.say(text[: self._left])
        self._left -= len(line)
        if self._left <= 0:
            self.say("[it writes more, which is left out]")
