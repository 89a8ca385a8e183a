"""`leyden console` as a command: what it refuses, and the process that `leyden train --console` starts."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from leyden.core.cli.commands import console
from leyden.core.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nothing"], "no folder 'nothing', and no run of this name"),
        (["--runs", "missing"], "there is no folder missing"),
        (["--port", "70000", "."], "port must be"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(["console", *arguments]) == 2

    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_without_its_package_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "leyden.console.server", None)

    assert run(["console"]) == 2
    assert "pip install leyden-console" in capsys.readouterr().err


@pytest.mark.integration
def test_an_address_in_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["console", "--runs", str(tmp_path), "--port", str(port)]) == 1

    assert "address" in capsys.readouterr().err.splitlines()[-1]


def address_of(said: str) -> str:
    found = re.search(r"http://\S+", said)
    assert found is not None, said
    return found.group()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}api/runs", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.integration
def test_a_console_beside_a_run_ends_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with console.console_beside(tmp_path / "runs"):
        address = address_of(capsys.readouterr().err)
        assert answers(address)

    assert not answers(address)


@pytest.mark.integration
def test_a_console_beside_a_run_that_is_killed_ends_too(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from leyden.core.cli.commands.console import console_beside
import time
with console_beside(Path({str(tmp_path)!r})):
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = address_of(process.stderr.readline())
        assert answers(address)
        os.kill(process.pid, signal.SIGKILL)

    ends = time.monotonic() + 30
    while answers(address):
        assert time.monotonic() < ends, "the console outlived the run"
        time.sleep(0.2)


@pytest.mark.integration
@pytest.mark.parametrize(("option", "lower"), [([], console.LOWER_PRIORITY), (["--allow-actions"], 0)])
def test_a_console_that_only_reads_leaves_the_processor_to_the_training(
    option: list[str], lower: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "leyden.core.cli", "console", "--runs", str(tmp_path), "--port", "0", *option]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "http://" in process.stdout.readline()
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(own + lower, 19)
        finally:
            process.terminate()
