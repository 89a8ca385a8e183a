"""What is read of a process of VERL's: whole lines, each once, and why it ended."""

import asyncio
import sys
from pathlib import Path

import pytest

from leyden.core.algorithm.verl.driver import process
from leyden.core.algorithm.verl.driver.launch import REFUSED, Launch
from leyden.core.algorithm.verl.driver.process import StepNumbers, trainer_process
from leyden.core.errors import TrainingError, UsageError

LAUNCH = Launch(config={}, settings={}, ray_address=None, environment={"GREETING": "hello"})


def stands_for_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Let `body` be run in the place of VERL; returns where it says what."""
    (tmp_path / "pretended.py").write_text(f"import os, sys\nline = sys.stdin.buffer.readline()\n{body}\n")
    monkeypatch.setattr(process, "CHILD", "pretended")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "verl.log"


def test_numbers_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    numbers = StepNumbers(path)
    assert numbers.new() == []
    path.write_bytes(b'{"step": 1, "data": {"a": 1}}\n{"step": 2, "da')
    assert numbers.new() == [(1, {"a": 1})]
    with path.open("ab") as file:
        file.write(b'ta": {"a": 2}}\n')
    assert numbers.new() == [(2, {"a": 2})]
    assert numbers.new() == []


async def test_it_is_told_what_to_do_and_ends_when_its_input_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stands_for_verl(tmp_path, monkeypatch, "print(os.environ['GREETING'], line.decode(), sys.stdin.read())")
    async with trainer_process(LAUNCH, log) as started:
        pass
    await started.ended()
    assert log.read_text().startswith('hello {"config":{}')


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (f"sys.exit(print('{REFUSED}trainer.nope: no such key') or 2)", UsageError, "^trainer.nope: no such key$"),
        ("raise ValueError('no such placement group')", TrainingError, "code 1: ValueError: no such placement group"),
        (
            "sys.exit(print('ray.exceptions.ActorDiedError: It died.\\n\\tclass_name: Server\\n\\tpid: 1') or 1)",
            TrainingError,
            r"code 1: ray.exceptions.ActorDiedError: It died \(class_name: Server\); its output is in",
        ),
        (
            "print('UserWarning: NoError there', flush=True); os.kill(os.getpid(), 9)",
            TrainingError,
            "code -9; its output",
        ),
    ],
)
async def test_why_it_ended_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, error: type[Exception], said: str
) -> None:
    log = stands_for_verl(tmp_path, monkeypatch, body)
    log.write_text("ValueError: of an earlier sitting\n")
    async with trainer_process(LAUNCH, log) as started:
        with pytest.raises(error, match=said):
            await started.ended()


async def test_verl_ends_with_whoever_started_it() -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from leyden.core.algorithm.verl.inside_verl import child; child._end_with_parent()"),
        stdin=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.close()
    assert await child.wait() == 1
