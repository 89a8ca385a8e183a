"""`CommandAgent`: a command line as an agent, in whatever language. Knows nothing of queues or rewards.

The command is told of its attempt by its environment, as any client of an OpenAI-style endpoint would be, so it needs
no line about Leyden. Secrets, as far as their names say so, are taken out of that environment, but for those that the
user names.
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
from leyden.core.masking import OWN_TOKENS, LineMasker, mask_text, remember_secret
from leyden.core.runner.attempts.threads import in_thread
from leyden.core.runner.commands.process import CommandProcess, Exit, Streams
from leyden.core.runner.user_code.task_input import row_of
from leyden.core.tracing.children.environment import of_command, withheld
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.wire.unsupported_clients import COMMAND

OUTPUT_BYTES = 1 << 20
"""Of the standard output, so many bytes are kept: the last, where an answer is."""
ERROR_BYTES = 64 << 10
"""Of the standard error, so many bytes of an attempt reach the log: the first."""
LAST_LINE_CHARACTERS = 300
ATTEMPTS_OWN = frozenset({"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"})
TASK_BYTES = 100_000
"""A longer task is on the standard input only: a system refuses a variable of more than 128 kB."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class CommandFailed(Exception):
    """A command did not end well; the message is one line."""


class CommandAgent:
    """Runs `arguments`, without a shell, once for each attempt; what it prints is its result.

    `{key}` in an argument stands for that key of the task: a text as it is, anything else as JSON; `{{` and `}}` are
    braces. `env` names variables whose values are secrets and which the command gets all the same. Raises UsageError
    when there is no command or `env` is none of names, AgentNotFound when there is no such program.
    """

    def __init__(self, arguments: Sequence[str], env: Sequence[str] = ()) -> None:
        self.arguments, self.env = tuple(arguments), check_env(env)
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
        for name in self.env:
            remember_secret(os.environ.get(name, ""))
        attempt.extra[COMMAND] = self.arguments[0]  # its calls do not pass by here: the gateway records them
        output, errors = Tail(), _ErrorLog(attempt.rollout_id, withheld(os.environ, self.env))
        streams = Streams(stdin=task_json(task), stdout=output, stderr=errors)
        command = self.filled(task)
        ended = await run_process(CommandProcess(command, environment(task, attempt, env=self.env), streams))
        errors.close()
        result = output.text()
        if output.lost:
            errors.say(f"[the first {output.lost} bytes that it printed are left out of its result]")
        if ended.code != 0:
            said = f": {last}" if (last := errors.last) else ""
            raise CommandFailed(f"{command[0]} {ended}{said}{wanted(errors.names)}")
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


def check_env(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names`, or raise UsageError for what no command can be given."""
    if isinstance(names, str):
        raise UsageError(f"env is a list of names of variables, not the text {mask_text(names)!r}")
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"--env takes the name of an environment variable, not {mask_text(name.partition('=')[0])!r} with a "
                "value: set the variable, and give its name (a value would be kept in config.yaml)"
                if "=" in name
                else f"--env takes the name of an environment variable, not {mask_text(name)!r}"
            )
        if name in OWN_TOKENS:
            raise UsageError(f"--env {name}: a command never gets Leyden's own tokens; leave it out")
        if name in ATTEMPTS_OWN:
            raise UsageError(f"--env {name}: a command has the attempt's own {name}, which leads to the gateway")
    return tuple(names)


def check_set(names: Sequence[str]) -> None:
    """Raise UsageError for a variable that is not set here, where the commands run."""
    for name in names:
        if name not in os.environ:
            raise UsageError(f"--env {name}: this variable is not set; set it, or leave the option out")


def wanted(names: set[str]) -> str:
    """What to do for a command that spoke of variables which it was not given; empty where it spoke of none."""
    if not names:
        return ""
    options = " ".join(f"--env {name}" for name in sorted(names))
    return f" (commands do not get variables that hold secrets: give {options})"


def environment(
    task: Task, attempt: OpenAttempt, base: Mapping[str, str] | None = None, env: Sequence[str] = ()
) -> dict[str, str]:
    """`base` (this process's own, if not given) without secrets, and what leads a client to the gateway.

    Of the secrets it has those that `env` names.
    """
    variables = of_command(os.environ if base is None else base, attempt, env)
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

    def __init__(self, rollout_id: str, withheld: frozenset[str]) -> None:
        self.last = ""
        """The last line that was not empty, as it may be shown."""
        self.names: set[str] = set()
        """Of the variables that the command was not given, those that it spoke of."""
        self._withheld = withheld
        self._rollout_id, self._masker, self._left = rollout_id, LineMasker(), ERROR_BYTES

    def __call__(self, piece: bytes) -> None:
        self._pass_on(self._masker.feed(piece))

    def close(self) -> None:
        """There will be no more: what is left is a line too."""
        self._pass_on(self._masker.close())

    def say(self, text: str) -> None:
        """Write a line of our own about the command."""
        sys.stderr.write(f"{self._rollout_id}: {text}\n")

    def _pass_on(self, lines: bytes) -> None:
        for text in filter(None, map(str.strip, lines.decode().split("\n"))):
            self.last = text[:LAST_LINE_CHARACTERS]
            self.names |= self._withheld.intersection(_VARIABLE.findall(text[:ERROR_BYTES]))
            if self._left > 0:
                self.say(text[: self._left])
                self._left -= len(text) + 1
                if self._left <= 0:
                    self.say("[it writes more, which is left out]")
