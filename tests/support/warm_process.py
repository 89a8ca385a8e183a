"""Runs `leyden` commands and scripts in processes whose libraries are loaded already.

Loading torch and transformers takes ten times as long as what most end-to-end tests are about. One process loads them,
and each command gets a fork of it: a process of its own in all else, with its folder, environment, streams, exit code.
With `FORKS`, so are the workers and learners that it starts, of another one, which has loaded LangChain, too.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory

PRELOADED = [
    "leyden.core.cli.main",
    "leyden.core.engine.embedded.engine",
    "leyden.core.policy.update.updater",
    "leyden.core.trainer.session",
]
FORKS = "LEYDEN_TEST_FORKS"
"""Variable of the process that runs the tests: set where so many commands are run that a template of workers pays."""


class Running:
    """A command that was started: what a test does with a process that it stops or kills."""

    def __init__(
        self, what: Callable[[], None], arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]
    ) -> None:
        self.arguments = list(arguments)
        self._folder = TemporaryDirectory()
        self._out, self._err = (Path(self._folder.name, name) for name in ("out", "err"))
        given = (what, self.arguments, str(cwd), dict(environment), str(self._out), str(self._err))
        self._process = _context().Process(target=_become, args=given)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit code, -9 after a kill; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, as the shell does at Ctrl-C."""
        os.kill(self._process.pid or 0, number)

    def ended(self, timeout: float) -> "CompletedProcess[str]":
        """Wait for its end. Raises TimeoutExpired, and leaves nothing running."""
        self._process.join(timeout)
        if self.returncode is None:
            self._process.kill()
            self._process.join()
            raise TimeoutExpired(self.arguments, timeout, _text(self._out), _text(self._err))
        done = CompletedProcess(self.arguments, self.returncode, _text(self._out), _text(self._err))
        self._folder.cleanup()
        return done


def start_leyden(arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Running:
    """Start `python -m leyden.core.cli ARGUMENTS`."""
    return Running(_command_line, ["leyden", *arguments], cwd, environment)


def run_leyden(
    arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout: float
) -> "CompletedProcess[str]":
    """`python -m leyden.core.cli ARGUMENTS`. Raises TimeoutExpired."""
    return start_leyden(arguments, cwd=cwd, environment=environment).ended(timeout)


def run_script(script: Path, *, cwd: Path, environment: Mapping[str, str], timeout: float) -> "CompletedProcess[str]":
    """`python SCRIPT`. Raises TimeoutExpired."""
    return Running(_script, [str(script)], cwd, environment).ended(timeout)


def _command_line() -> None:
    from leyden.core.cli.main import main

    main()


def _script() -> None:
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*(["forks_of_commands"] if os.environ.get(FORKS) else []), *PRELOADED])
    return context


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _become(
    what: Callable[[], None], arguments: list[str], cwd: str, environment: dict[str, str], out: str, err: str
) -> None:
    for number, stream in ((1, out), (2, err)):
        descriptor = os.open(stream, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    if "forks_of_commands" in sys.modules:
        sys.executable = sys.modules["forks_of_commands"].PYTHON
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    what()
