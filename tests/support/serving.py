"""Commands that serve until they are told to end, as processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 240

Serving = tuple["subprocess.Popen[str]", dict[str, Any]]
Start = Callable[..., Serving]


@contextmanager
def starting(command: str, folder: Path, environment: dict[str, str]) -> Generator[Start]:
    """Give what starts `leyden COMMAND --json`, on a free port unless one is given, and returns what it printed.

    Further arguments are the command's, keywords are environment variables. Whatever is left is killed at the end.
    """
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **variables: str) -> Serving:
        line = [sys.executable, "-m", "leyden.core.cli", command, "--json", "--port", "0", *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            line, cwd=folder, env={**environment, **variables}, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, process.communicate()
        return process, json.loads(said)

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ends(process: "subprocess.Popen[str]", by: signal.Signals, *, warned: str = "") -> int:
    """Tell a command to end; returns its exit code. All that it printed since is a line that begins with `warned`."""
    process.send_signal(by)
    output, errors = process.communicate(timeout=SECONDS)
    assert output == ""
    assert errors.startswith(warned) and len(errors.splitlines()) == (1 if warned else 0), errors
    return process.returncode


def inherited(*without: str) -> dict[str, str]:
    """This process's environment, without some of it."""
    return {name: value for name, value in os.environ.items() if name not in without}
