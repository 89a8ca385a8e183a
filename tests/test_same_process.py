"""Which tests one process of pytest-xdist runs."""

from types import SimpleNamespace
from typing import Any

import pytest
from same_process import FOLDERS, SameProcess


def one_process(option: str) -> list[str]:
    return ["popen"] if option == "tx" else []


def scheduler(dist: str) -> Any:
    config: Any = SimpleNamespace(option=SimpleNamespace(dist=dist), getvalue=one_process)
    return SameProcess().pytest_xdist_make_scheduler(config, None)


def test_files_of_some_folders_are_one_piece_of_work_and_all_others_are_their_own() -> None:
    pytest.importorskip("xdist")
    found = [scheduler("loadfile")._split_scope(f"{folder}tests/test_{n}.py::test") for folder in FOLDERS for n in "ab"]
    assert found == [folder for folder in FOLDERS for _ in "ab"]
    assert scheduler("loadfile")._split_scope("packages/core/tests/test_a.py::Test::test[b]") == (
        "packages/core/tests/test_a.py"
    )
    assert scheduler("load") is None
