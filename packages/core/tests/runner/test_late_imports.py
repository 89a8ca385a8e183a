import subprocess
import sys
from pathlib import Path

import pytest

from leyden.core.runner import late_imports

LOADS = """
import sys
import openai
from leyden.core.runner.late_imports import LATE, import_late_parts
assert not set(LATE) & set(sys.modules), "this openai imports everything at once: nothing is left to test"
import_late_parts()
assert set(LATE) <= set(sys.modules)
"""
LOADS_NOTHING = """
import sys
from leyden.core.runner.late_imports import import_late_parts
import_late_parts()
assert "openai" not in sys.modules
"""


@pytest.mark.parametrize("code", [LOADS, LOADS_NOTHING])
def test_only_the_rest_of_what_is_loaded_is_imported(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_part_that_is_missing_or_broken_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "library_of_old").mkdir()
    (tmp_path / "library_of_old/__init__.py").touch()
    (tmp_path / "library_of_old/broken.py").write_text("raise RuntimeError('broken')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(late_imports, "LATE", ("library_of_old.gone", "library_of_old.broken", "library_of_old"))
    __import__("library_of_old")
    late_imports.import_late_parts()
    assert "library_of_old.broken" not in sys.modules
