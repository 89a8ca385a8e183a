"""What the process without the agent imports before it forks one for each rollout."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from leyden.core.runner.isolation.processes import import_safely
import_safely(["imports_one", "imports_thread", "imports_thread.below", "imports_two", "imports_exit", "imports_three"])
print(*sorted(name for name in sys.modules if name.startswith("imports_")), threading.active_count())
"""


def test_what_stands_behind_a_module_that_starts_a_thread_is_imported_too(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"imports_{name}.py").write_text("")
    (tmp_path / "imports_thread").mkdir()
    (tmp_path / "imports_thread/__init__.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (tmp_path / "imports_thread/below.py").write_text("")
    (tmp_path / "imports_exit.py").write_text("import os\nos._exit(1)\n")
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["imports_one", "imports_three", "imports_two", "1"]
