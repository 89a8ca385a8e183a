import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from leyden.core.runner.attempts import thread_safety
from leyden.core.runner.attempts.thread_safety import prepare_first_use

LOADS = """
import sys
import openai
from leyden.core.runner.attempts.thread_safety import LATE, prepare_first_use
assert not set(LATE) & set(sys.modules), "this openai imports everything at once: nothing is left to test"
prepare_first_use()
assert set(LATE) <= set(sys.modules)
"""
LOADS_NOTHING = """
import sys
from leyden.core.runner.attempts.thread_safety import prepare_first_use
prepare_first_use()()
assert not {"openai", "pydantic"} & set(sys.modules)
"""


@pytest.mark.integration
@pytest.mark.parametrize("code", [LOADS, LOADS_NOTHING])
def test_only_the_rest_of_what_is_loaded_is_imported(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_part_that_is_missing_or_broken_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "library_of_old").mkdir()
    (tmp_path / "library_of_old/__init__.py").touch()
    (tmp_path / "library_of_old/broken.py").write_text("raise RuntimeError('broken')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(thread_safety, "LATE", ("library_of_old.gone", "library_of_old.broken", "library_of_old"))
    __import__("library_of_old")
    prepare_first_use()()
    assert "library_of_old.broken" not in sys.modules


@pytest.fixture
def prepared() -> Generator[None]:
    undo = prepare_first_use()
    yield
    undo()


def deferred() -> type[pydantic.BaseModel]:
    """A model that is built at its first use, and takes its time over it."""
    fields: Any = {f"field{n}": (int | str | list[int], 0) for n in range(30)}
    return pydantic.create_model("Deferred", __config__=pydantic.ConfigDict(defer_build=True), **fields)


def errors_of_threads(use: Callable[[], object], count: int = 8) -> list[Exception]:
    errors, start = list[Exception](), threading.Barrier(count)

    def run() -> None:
        start.wait()
        try:
            use()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.usefixtures("prepared")
def test_threads_may_come_to_a_deferred_model_at_once() -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(30):
            model = deferred()
            assert errors_of_threads(lambda model=model: model(field1=3).model_dump()) == []
            assert model.__pydantic_complete__
    finally:
        sys.setswitchinterval(switching)


@pytest.mark.usefixtures("prepared")
def test_names_are_still_looked_up_where_the_rebuilding_is_asked_for() -> None:
    class Holder(pydantic.BaseModel):
        held: "Local"

    class Local(pydantic.BaseModel):
        value: int

    assert Holder.model_rebuild() is True
    assert Holder.model_rebuild() is None
    assert Holder.model_validate({"held": {"value": 2}}).model_dump() == {"held": {"value": 2}}
    assert Holder.model_rebuild(force=True) is True


def test_undone_it_leaves_pydantic_as_it_was() -> None:
    before = vars(pydantic.BaseModel)["model_rebuild"]
    undo = prepare_first_use()
    assert vars(pydantic.BaseModel)["model_rebuild"] is not before
    undo()
    assert vars(pydantic.BaseModel)["model_rebuild"] is before
