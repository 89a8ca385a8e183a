import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import LeydenError
from leyden.core.masking import log_filter
from leyden.core.runner.workers import masked_log
from leyden.core.runner.workers.masked_log import MaskedLog, open_log

pytestmark = pytest.mark.integration

KEY = "ghp_0123456789abcdefABCDEF0123456789"
VALUE = "battery-staple-9"

Started = subprocess.Popen[bytes]


@contextlib.asynccontextmanager
async def masked(path: Path | None) -> AsyncGenerator[MaskedLog]:
    log = MaskedLog(None if path is None else str(path), lambda: [VALUE])
    await log.start()
    try:
        yield log
    finally:
        await log.stop()


def start(log: MaskedLog, *command: str) -> Started:
    """Start a command that prints to the log."""
    output = log.open_pipe()
    try:
        return subprocess.Popen(command, stdout=output, stderr=output)
    finally:
        os.close(output)


async def end(process: Started) -> int:
    return await asyncio.to_thread(process.wait)


async def run(log: MaskedLog, *command: str) -> None:
    assert await end(start(log, *command)) == 0


def filter_of(log: MaskedLog) -> int:
    process: Any = vars(log)["_process"]
    return process.pid


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")


PRINTS = f"""
import ctypes, os, subprocess, sys
print("from Python {KEY}", flush=True)
print("to its error {VALUE}", file=sys.stderr, flush=True)
ctypes.CDLL(None).puts(b"from C {KEY}")
ctypes.CDLL(None).fflush(None)
subprocess.run(["sh", "-c", "echo from a child {KEY}; printf '\\\\033[2J\\\\r' >&2"])
os.write(1, b"no end {KEY}")
os.kill(os.getpid(), 9)
"""


async def test_all_that_a_process_prints_is_in_the_log_masked_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "agents.log"
    path.write_text("from before\n")
    path.chmod(0o644)
    async with masked(path) as log:
        assert await end(start(log, sys.executable, "-c", PRINTS)) == -signal.SIGKILL
    assert path.read_text().splitlines() == [
        "from before",
        "from Python ghp_***",
        "to its error ***",
        "from C ghp_***",
        "from a child ghp_***",
        "\\x1b[2J\\x0dno end ghp_***",
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_lines_of_many_writers_stay_whole_and_each_ones_in_order(tmp_path: Path) -> None:
    path = tmp_path / "agents.log"
    code = f"import sys\nfor n in range(2000): print(sys.argv[1], n, '{KEY}')"
    async with masked(path) as log:
        processes = [start(log, sys.executable, "-c", code, f"writer-{n}") for n in range(4)]
        assert [await end(process) for process in processes] == [0] * 4
    lines = path.read_text().splitlines()
    assert len(lines) == 8000
    for writer in range(4):
        own = [line for line in lines if line.startswith(f"writer-{writer} ")]
        assert own == [f"writer-{writer} {n} ghp_***" for n in range(2000)]


WRITES_ON = """
import sys
while sys.stdin.readline():
    for n in range(3000): print("x" * 1000)
    print("done", flush=True)
print("the end", flush=True)
"""


async def test_a_killed_filter_is_replaced_and_ends_no_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is killed while the writer waits for it, with a pipe that is full."""
    path = tmp_path / "agents.log"
    async with masked(path) as log:
        output = log.open_pipe()
        writer = subprocess.Popen([sys.executable, "-c", WRITES_ON], stdin=subprocess.PIPE, stdout=output)
        os.close(output)
        assert writer.stdin is not None
        for _ in range(3):
            before = filter_of(log)
            os.kill(before, signal.SIGSTOP)
            writer.stdin.write(b"more\n")
            writer.stdin.flush()
            os.kill(before, signal.SIGKILL)
            await until(lambda before=before: filter_of(log) != before)
        writer.stdin.close()
        assert await end(writer) == 0
        await run(log, "sh", "-c", f"echo another {VALUE}")
    lines = path.read_text().splitlines()
    assert "the end" in lines
    assert "another ***" in lines
    assert "is restarted" in caplog.text


async def test_where_no_filter_can_be_started_writers_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agents.log"
    monkeypatch.setattr(masked_log, "PAUSE_SECONDS", 0.02)
    async with masked(path) as log:
        with monkeypatch.context() as patch:

            async def fails(self: MaskedLog, control: int) -> Any:
                raise OSError(12, "Cannot allocate memory")

            patch.setattr(MaskedLog, "_start", fails)
            os.kill(filter_of(log), signal.SIGKILL)
            await run(log, sys.executable, "-c", "for n in range(5000): print('x' * 1000)")
        await until(lambda: "is restarted" in caplog.text)
        await run(log, "echo", "after it")
    assert "after it" in path.read_text()
    assert "cannot be started: [Errno 12]" in caplog.text


async def test_secrets_reach_the_filter_neither_by_its_command_nor_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct-horse-7")
    path = tmp_path / "agents.log"
    async with masked(path) as log:
        await run(log, "echo", "hello")
        await until(lambda: path.read_text() == "hello\n")  # its command and environment are set only in exec
        seen = b"".join(Path(f"/proc/{filter_of(log)}/{name}").read_bytes() for name in ("cmdline", "environ"))
    assert b"leyden.core.masking.log_filter" in seen
    assert b"correct-horse-7" not in seen
    assert VALUE.encode() not in seen


async def test_what_outlives_the_log_prints_on_and_takes_its_filter_along(tmp_path: Path) -> None:
    path = tmp_path / "agents.log"
    async with masked(path) as log:
        output = log.open_pipe()
        code = f"import sys; sys.stdin.read(); print('late {KEY}', flush=True)"
        writer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=output)
        os.close(output)
    assert path.read_text() == ""
    assert writer.stdin is not None
    writer.stdin.close()
    assert await end(writer) == 0, "it has met a pipe that nobody reads"
    await until(lambda: path.read_text() == "late ghp_***\n")


PARENT = f"""
import asyncio, os, subprocess, sys
from leyden.core.runner.workers.masked_log import MaskedLog

async def main():
    log = MaskedLog(sys.argv[1], list)
    await log.start()
    output = log.open_pipe()
    command = ["sh", "-c", "echo begins; read line; echo ends {KEY}"]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)
    os.close(output)
    print(vars(log)["_process"].pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_parent_leaves_no_filter_behind_and_no_line_out(tmp_path: Path) -> None:
    path = tmp_path / "agents.log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(await asyncio.to_thread(parent.stdout.readline))
    await until(lambda: path.exists() and "begins" in path.read_text())
    parent.kill()
    await end(parent)  # the writer's input ends with it
    await until(lambda: path.read_text() == "begins\nends ghp_***\n")
    await until(lambda: not alive(pid))


async def test_without_a_file_lines_go_to_the_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    async with masked(None) as log:
        await run(log, "sh", "-c", f"echo {KEY}; printf '\\033[1m' >&2")
    assert capfd.readouterr() == ("", "ghp_***\n\\x1b[1m\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full")
async def test_a_full_disk_stops_nobody() -> None:
    log = MaskedLog("/dev/full", list)
    await log.start()
    await run(log, sys.executable, "-c", "for n in range(5000): print('x' * 1000)")
    await log.stop()


async def test_a_log_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    log = MaskedLog(str(tmp_path / "missing" / "agents.log"), list)
    with pytest.raises(LeydenError, match=r"missing/agents\.log cannot be written: No such file"):
        await log.start()


def test_pipes_that_have_ended_are_closed(tmp_path: Path) -> None:
    async def many() -> int:
        async with masked(tmp_path / "agents.log") as log:
            for _ in range(5):
                await run(log, "true")
            pipes: set[int] = vars(log)["_pipes"]
            return len(pipes)

    assert asyncio.run(many()) < 3


def test_the_filter_loads_nothing_but_the_standard_library_and_masking() -> None:
    code = (
        f"import json, sys; import {log_filter.__name__}\n"
        "names = {name for name in sys.modules if name.partition('.')[0] not in sys.stdlib_module_names}\n"
        "print(json.dumps(sorted(name for name in names if not name.startswith(('leyden.core.masking', '_')))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [name for name in found if name.startswith("leyden")] == ["leyden", "leyden.core"]
    assert not {"msgspec", "asyncio"} & {name.partition(".")[0] for name in found}


def test_a_log_is_its_owners(tmp_path: Path) -> None:
    os.close(open_log(str(tmp_path / "new.log")))
    assert stat.S_IMODE((tmp_path / "new.log").stat().st_mode) == 0o600
