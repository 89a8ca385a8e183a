"""Processes of pytest-xdist that are forks: they have what was loaded before, and are processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).with_name("support")
TESTS = """
import multiprocessing, os, sys
from pathlib import Path


def parent():
    return Path(f"/proc/{os.getppid()}/cmdline").read_text()


def test_what_was_named_is_loaded():
    assert "wave" in sys.modules and "forks.py" in parent()


def test_a_child_knows_its_parent():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(os.getppid) == os.getpid()


def test_a_process_of_another_start_finds_no_main_module():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(os.getcwd) == os.getcwd()


def test_that_fails():
    assert "wave" not in sys.modules, "as it should be"


def test_that_ends_its_process():
    os._exit(3)


def test_after_it():
    assert "forks.py" in parent()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the forks need Linux's /proc")
def test_they_run_tests_fail_and_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "test_forks.py").write_text(TESTS)
    arguments = ["-p", "forked_tests", "-p", "no:cacheprovider", "-n", "1", "--forked-tests=wave", "-rA", "-v"]
    command = [sys.executable, "-m", "pytest", *arguments, "test_forks.py"]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert "4 passed" in said and "2 failed" in said, said
    assert "as it should be" in said
    assert "crashed while running 'test_forks.py::test_that_ends_its_process'" in said
