"""`CommandAgent`: a command line as an agent, in any language.

The command receives its attempt through environment variables, as any client of an OpenAI-style endpoint does, so it
needs no code for Leyden. Variables whose names indicate a secret are removed, except those that the user names.
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
from leyden.core.masking import OWN_TOKENS, LineMasker, mask_text, remember_secret, withheld
from leyden.core.runner.attempts.threads import in_thread
from leyden.core.runner.commands.process import CommandProcess, Exit, Streams
from leyden.core.runner.user_code.task_input import row_of
from leyden.core.tracing.children.environment import ATTEMPTS_OWN, with_gateway, with_hook
from leyden.core.tracing.children.inherited import InheritedState
from leyden.core.tracing.context import Caller, OpenAttempt
from leyden.core.tracing.wire.unsupported_clients import COMMAND

OUTPUT_BYTES = 1 << 20
"""Number of bytes of standard output that are kept. These are the last ones, where an answer is."""
ERROR_BYTES = 64 << 10
"""Number of bytes of an attempt's standard error that reach the log. These are the first ones."""
LAST_LINE_CHARACTERS = 300
TASK_BYTES = 100_000
"""Largest task in `LEYDEN_TASK`, in bytes.

Longer tasks are on standard input only: systems limit a variable to 128 kB.
"""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class CommandFailed(Exception):
    """A command failed. The message is one line."""


class CommandAgent:
    """Agent that runs `arguments` once for each attempt, without a shell. The command's output is its result.

    `{key}` in an argument stands for that key of the task: a string as it is, any other value as JSON. `{{` and `}}`
    stand for braces. `env` names variables that hold secrets and that the command receives nevertheless.

    Raises UsageError when there is no command or `env` is not a list of names. Raises AgentNotFound when there is no
    such program.
    """

    def __init__(self, arguments: Sequence[str], env: Sequence[str] = ()) -> None:
        self.arguments, self.env = tuple(arguments), check_env(env)
        if not self.arguments or not self.arguments[0]:
            raise UsageError("the command is empty")
        program = self.arguments[0]
        if not _PIECE.search(program) and shutil.which(program) is None:
            raise AgentNotFound(f"there is no program {program!r}: it is neither a file nor on the PATH")

    def __repr__(self) -> str:
        return f"CommandAgent({list(self.arguments)!r})"

    def filled(self, task: Task) -> list[str]:
        """Return the arguments for `task`. Raises TaskError, which names the task's keys, where a key has no value."""
        return [_filled(argument, task) for argument in self.arguments]

    async def run(self, task: Task, attempt: OpenAttempt) -> Any:
        """Run the command and return its output without surrounding white space.

        Raises CommandFailed when its exit code is not 0. When it is cancelled, it ends the command and all its
        processes.
        """
        for name in self.env:
            remember_secret(os.environ.get(name, ""))
        attempt.extra[COMMAND] = self.arguments[0]  # the command's calls bypass this process: the gateway records them
        output, errors = OutputTail(), _ErrorLog(attempt.rollout_id, withheld(os.environ, self.env))
        streams = Streams(stdin=task_json(task), stdout=output, stderr=errors)
        command = self.filled(task)
        ended = await run_process(CommandProcess(command, environment(task, attempt, env=self.env), streams))
        errors.close()
        result = output.text()
        if output.lost:
            errors.log(f"[the first {output.lost} bytes of its output are not in its result]")
        if ended.code != 0:
            suffix = f": {last}" if (last := errors.last) else ""
            raise CommandFailed(f"{command[0]} {ended}{suffix}{wanted(errors.names)}")
        return result


async def run_process(process: CommandProcess) -> Exit:
    """Run `process` to its end and return how it ended. When it is cancelled, it ends the process first."""
    running = asyncio.ensure_future(in_thread(process.run))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        process.end()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # read the exception, so that asyncio does not log it
        raise


def check_env(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` as a tuple. Raises UsageError for a name that no command may receive."""
    if isinstance(names, str):
        raise UsageError(f"env must be a list of variable names, not the text {mask_text(names)!r}")
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"--env takes the name of an environment variable, not {mask_text(name.partition('=')[0])!r} with a "
                "value: set the variable, and give only its name (a value would be written to config.yaml)"
                if "=" in name
                else f"--env takes the name of an environment variable, not {mask_text(name)!r}"
            )
        if name in OWN_TOKENS:
            raise UsageError(f"--env {name}: a command cannot get Leyden's own tokens; remove this option")
        if name in ATTEMPTS_OWN:
            raise UsageError(
                f"--env {name}: Leyden sets {name} for the command, so that its calls reach the gateway; remove this "
                "option"
            )
    return tuple(names)


def check_set(names: Sequence[str]) -> None:
    """Raise UsageError for a variable that is not set on this machine, where the commands run."""
    for name in names:
        if name not in os.environ:
            raise UsageError(f"--env {name}: this variable is not set; set it, or remove this option")


def wanted(names: set[str]) -> str:
    """Return advice for a command whose error output mentions `names`, the variables withheld from it.

    Empty where it mentions none.
    """
    if not names:
        return ""
    options = " ".join(f"--env {name}" for name in sorted(names))
    return f" (commands do not get variables with secrets: to pass them, give {options})"


def environment(
    task: Task, attempt: OpenAttempt, base: Mapping[str, str] | None = None, env: Sequence[str] = ()
) -> dict[str, str]:
    """Return a command's environment: `base` without secrets, with the variables that lead a client to the gateway.

    `base` is by default this process's own environment. Secrets that `env` names stay.
    """
    base = os.environ if base is None else base
    secrets = withheld(base, env) - ATTEMPTS_OWN
    kept = {name: value for name, value in base.items() if name not in secrets}
    variables = with_gateway(with_hook(kept, InheritedState.of(attempt, Caller(), fail_closed=True)), attempt)
    variables |= {name: base[name] for name in env if name in base and name not in variables}
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
    raise TaskError(f"{keys}; the argument {argument!r} needs {wanted} (write {{{{ or }}}} for a brace)")


def task_json(task: Task) -> bytes:
    """Return a task, or a value in one, as JSON."""
    return msgspec.json.encode(task)


class OutputTail:
    """Buffer for the last `OUTPUT_BYTES` of an output."""

    def __init__(self) -> None:
        self.lost = 0
        """Number of bytes dropped before the kept ones."""
        self._kept = bytearray()

    def __call__(self, piece: bytes) -> None:
        """Append the next piece of output."""
        self._kept += piece
        if len(self._kept) > 2 * OUTPUT_BYTES:
            self._cut()

    def text(self) -> str:
        """Return the kept bytes as text without surrounding white space."""
        self._cut()
        return self._kept.decode(errors="replace").strip()

    def _cut(self) -> None:
        beyond = max(0, len(self._kept) - OUTPUT_BYTES)
        self.lost += beyond
        del self._kept[:beyond]


class _ErrorLog:
    """Copies lines to this process's standard error, masked and prefixed with the rollout's id.

    It keeps the last line.
    """

    def __init__(self, rollout_id: str, withheld: frozenset[str]) -> None:
        self.last = ""
        """Last line that was not empty, masked."""
        self.names: set[str] = set()
        """Names of withheld variables that the command's lines mention."""
        self._withheld = withheld
        self._rollout_id, self._masker, self._left = rollout_id, LineMasker(), ERROR_BYTES

    def __call__(self, piece: bytes) -> None:
        self._pass_on(self._masker.feed(piece))

    def close(self) -> None:
        """Treat the rest of the output as a last line."""
        self._pass_on(self._masker.close())

    def log(self, text: str) -> None:
        """Write a line of Leyden's own about the command."""
        sys.stderr.write(f"{self._rollout_id}: {text}\n")

    def _pass_on(self, lines: bytes) -> None:
        for text in filter(None, map(str.strip, lines.decode().split("\n"))):
            self.last = text[:LAST_LINE_CHARACTERS]
            self.names |= self._withheld.intersection(_VARIABLE.findall(text[:ERROR_BYTES]))
            if self._left > 0:
                self.log(text[: self._left])
                self._left -= len(text) + 1
                if self._left <= 0:
                    self.log("[further output is left out]")
