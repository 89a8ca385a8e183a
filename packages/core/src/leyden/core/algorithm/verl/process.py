"""Processes of VERL's own that a run starts, and the numbers that they write. Knows nothing of VERL's code."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.algorithm.verl.launch import REFUSED, Launch
from leyden.core.errors import TrainingError, UsageError

CHILD = "leyden.core.algorithm.verl.child"
ENDING_SECONDS = 20.0
"""How long VERL may take to end when it is told to."""


class TrainerProcess:
    """VERL's trainer, as long as it runs; what it says goes to `log`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    async def ended(self) -> None:
        """Wait for its end.

        Raises UsageError for a configuration that it refuses, and TrainingError, with the last it said of an error,
        for any other failure.
        """
        code = await self._process.wait()
        if code == 2 and (refused := _last(self._log, REFUSED)) is not None:
            raise UsageError(refused)
        if code:
            raise TrainingError(f"VERL ended with code {code}{_last_error(self._log)}; all it said is in {self._log}")

    async def stop(self) -> None:
        """End it, if it still runs: it ends when its input does."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), ENDING_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def trainer_process(launch: Launch, log: Path) -> AsyncGenerator[TrainerProcess]:
    """Start VERL; it has ended when the block has."""
    with log.open("ab") as output:
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", CHILD),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **launch.environment},
            start_new_session=True,  # Ctrl-C is for the run, which ends it
        )
    process = TrainerProcess(started, log)
    try:
        if started.stdin is not None:
            with contextlib.suppress(ConnectionError):  # it has ended already, and says so itself
                started.stdin.write(msgspec.json.encode(launch) + b"\n")
                await started.stdin.drain()
        yield process
    finally:
        await process.stop()


class StepNumbers:
    """Reads the lines that VERL's file logger adds to `path`, whole ones only, each once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[tuple[int, dict[str, Any]]]:
        """Step and numbers of each line that was added since."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = [msgspec.json.decode(line) for line in whole.splitlines()]
        return [(int(line["step"]), line["data"]) for line in lines]


def _last_error(log: Path) -> str:
    """The last line of the log that names an error, as the end of a sentence; nothing where there is none."""
    said = _last(log, "Error")
    return "" if said is None else f": {said}"


def _last(log: Path, mark: str) -> str | None:
    """The last line of the log that holds `mark`, from it on where it begins the line."""
    lines = log.read_bytes()[-65536:].decode(errors="replace").splitlines() if log.exists() else []
    marked = [line.strip().removeprefix(mark) for line in lines if mark in line]
    return marked[-1][:400] if marked else None
