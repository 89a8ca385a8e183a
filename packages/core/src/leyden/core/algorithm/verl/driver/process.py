"""Trainer process: starts and stops the process that runs VERL, and reads the metrics that VERL writes."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.algorithm.verl.driver.launch import REFUSED, Launch
from leyden.core.errors import TrainingError, UsageError

CHILD = "leyden.core.algorithm.verl.inside_verl.child"
ENDING_SECONDS = 20.0
"""Seconds that VERL may take to end after it was requested to stop."""
LAST_BYTES = 65536
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")


class TrainerProcess:
    """A running process of VERL's trainer; its output is written to the file `log`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, began: int) -> None:
        self._process, self._log, self._log_start = process, log, began

    async def ended(self) -> None:
        """Wait until the process ends.

        Raises UsageError for a configuration that it refuses. Raises TrainingError, with the last error in its output,
        for any other failure.
        """
        code = await self._process.wait()
        if code == 2 and (refused := _last_refusal(self._last_lines())) is not None:
            raise UsageError(refused)
        if code:
            last_error = _last_error(self._last_lines())
            raise TrainingError(f"VERL ended with code {code}{last_error}; its output is in {self._log}")

    def _last_lines(self) -> list[str]:
        """Return the last lines of the process's output."""
        with self._log.open("rb") as file:
            file.seek(max(self._log_start, self._log.stat().st_size - LAST_BYTES))
            return file.read().decode(errors="replace").splitlines()

    async def stop(self) -> None:
        """End the process if it still runs, by closing its standard input; kill it if that takes too long."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), ENDING_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def trainer_process(launch: Launch, log: Path) -> AsyncGenerator[TrainerProcess]:
    """Start VERL; the process has ended when the block has ended."""
    with log.open("ab") as output:
        began = output.tell()
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", CHILD),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **launch.environment},
            start_new_session=True,  # Ctrl-C must reach only the run, which then ends this process
        )
    process = TrainerProcess(started, log, began)
    try:
        if started.stdin is not None:
            with contextlib.suppress(ConnectionError):  # it has ended already; `ended` raises the reason
                started.stdin.write(msgspec.json.encode(launch) + b"\n")
                await started.stdin.drain()
        yield process
    finally:
        await process.stop()


class StepNumbers:
    """Reader of the metrics that VERL's file logger appends to `path`; returns each complete line once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[tuple[int, dict[str, Any]]]:
        """Return step and metrics of each line added since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = [msgspec.json.decode(line) for line in whole.splitlines()]
        return [(int(line["step"]), line["data"]) for line in lines]


def _last_error(lines: list[str]) -> str:
    """Return the last line that begins with an error's name, as the end of a sentence; an empty string without one.

    If a Ray actor has died, the line after it names the actor and is included.
    """
    index = next((number for number in reversed(range(len(lines))) if ERROR.match(lines[number])), None)
    if index is None:
        return ""
    next_line = "".join(lines[index + 1 : index + 2]).strip()
    return f": {lines[index].strip()[:400].rstrip('.')}" + (
        f" ({next_line})" if next_line.startswith("class_name:") else ""
    )


def _last_refusal(lines: list[str]) -> str | None:
    """Return the last reason in the output why a configuration is refused; None without one."""
    refusals = [line.strip().removeprefix(REFUSED) for line in lines if REFUSED in line]
    return refusals[-1][:400] if refusals else None
