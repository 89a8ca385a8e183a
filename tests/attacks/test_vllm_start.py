"""Attacks on the start of a vLLM server by another user of the machine, who writes to the temporary folder before it.

No vLLM is installed where these run: a program, or a planted module, stands for it.
"""

import logging
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.engine.vllm.server import VllmServer
from leyden.core.errors import EngineError

RECORDER = """#!/bin/sh
echo "folder $(pwd) safe $PYTHONSAFEPATH"
exit 1
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, to which others write, too."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def recorder(tmp_path: Path) -> str:
    """A program in place of python that says where it runs, and ends."""
    program = tmp_path / "python"
    program.write_text(RECORDER)
    program.chmod(0o755)
    return str(program)


async def test_a_module_in_the_temporary_folder_is_not_imported(temporary: Path, tmp_path: Path) -> None:
    """Another user puts a package `vllm` into the temporary folder, and one beside the log."""
    beside = tmp_path / "logs"
    for folder in (temporary, beside):
        package = folder / "vllm" / "entrypoints" / "openai"
        package.mkdir(parents=True)
        (package / "api_server.py").write_text(f"open({str(tmp_path / 'harmed')!r}, 'w')")
    for log in (None, beside / "vllm.log"):
        with pytest.raises(EngineError, match=r"vLLM did not start: .*No module named"):
            await VllmServer(VllmOptions(python=sys.executable), log=log).start("nowhere")
    assert not (tmp_path / "harmed").exists()


async def test_it_runs_in_a_folder_that_nobody_else_can_open(temporary: Path, recorder: str) -> None:
    """Another user would put files where the server looks, or read its log."""
    server = VllmServer(VllmOptions(python=recorder))
    with pytest.raises(EngineError, match="vLLM did not start: folder"):
        await server.start("nowhere")
    assert server.log.read_text() == f"folder {server.log.parent} safe 1\n"
    assert server.log.parent.parent == temporary
    assert stat.S_IMODE(server.log.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.log.stat().st_mode) == 0o600


async def test_links_do_not_lead_the_log_elsewhere(temporary: Path, tmp_path: Path, recorder: str) -> None:
    """Another user guesses the log's name, and puts a link to a file of ours there."""
    ours = tmp_path / "ours"
    ours.write_text("ours")
    guessed = temporary / f"leyden-vllm-{os.getpid()}.log"
    guessed.symlink_to(ours)
    with pytest.raises(EngineError, match="vLLM did not start"):
        await VllmServer(VllmOptions(python=recorder)).start("nowhere")
    with pytest.raises(EngineError, match=r"log cannot be written to .*: it is a symbolic link") as caught:
        await VllmServer(VllmOptions(python=recorder), log=guessed).start("nowhere")
    assert "\n" not in str(caught.value)
    assert ours.read_text() == "ours"


async def test_a_log_that_goes_on_is_its_users_alone(temporary: Path, tmp_path: Path, recorder: str) -> None:
    """Another user reads what a server said; its private folder is gone with it."""
    log = tmp_path / "vllm.log"
    log.write_text("before\n")
    log.chmod(0o644)
    with pytest.raises(EngineError, match="vLLM did not start: folder"):
        await VllmServer(VllmOptions(python=recorder), log=log).start("nowhere")
    assert log.read_text().startswith("before\nfolder ")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("transfer", ["restart", "ipc"])
async def test_endpoints_that_unpickle_are_opened_with_a_warning_alone(
    temporary: Path, recorder: str, caplog: pytest.LogCaptureFixture, transfer: str
) -> None:
    """Another user sends a pickle to an endpoint that asks for no key."""
    assert VllmOptions().transfer == "restart"
    options = VllmOptions(python=recorder, transfer="ipc" if transfer == "ipc" else "restart")
    with caplog.at_level(logging.WARNING), pytest.raises(EngineError):
        await VllmServer(options, device="cuda").start("nowhere")
    assert ("unpickle" in caplog.text) == (transfer == "ipc")
