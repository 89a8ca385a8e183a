"""Runs `leyden` commands and scripts in processes whose libraries are loaded already.

Loading torch and transformers takes ten times as long as what most end-to-end tests are about. One process loads them,
and each command gets a fork of it: a process of its own in all else, with its folder, environment, streams, exit code.
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

PRELOADED = ["leyden.core.engine.embedded", "leyden.core.policy.update", "leyden.core.trainer.session"]


def run_leyden(
    arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout: float
) -> "CompletedProcess[str]":
    """`python -m leyden.core.cli ARGUMENTS`. Raises TimeoutExpired."""
    return _run(_command_line, ["leyden", *arguments], cwd, environment, timeout)


def run_script(script: Path, *, cwd: Path, environment: Mapping[str, str], timeout: float) -> "CompletedProcess[str]":
    """`python SCRIPT`. Raises TimeoutExpired."""
    return _run(_script, [str(script)], cwd, environment, timeout)


def _command_line() -> None:
    from leyden.core.cli.main import main

    main()


def _script() -> None:
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _run(
    what: Callable[[], None], arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float
) -> "CompletedProcess[str]":
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        given = (what, list(arguments), str(cwd), dict(environment), str(out), str(err))
        process = _context().Process(target=_become, args=given)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutExpired(list(arguments), timeout, _text(out), _text(err))
        return CompletedProcess(list(arguments), process.exitcode, _text(out), _text(err))


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
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
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    what()
