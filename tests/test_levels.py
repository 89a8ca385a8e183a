"""What fails a unit test: that it starts a process or a server, and not that a library which it imports does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
SUPPORT = Path(__file__).parent / "support"
LIBRARY = "import subprocess\nsubprocess.run(['true'], check=True)\n"
RUNS_ONE = "    import subprocess\n    subprocess.run(['true'], check=True)\n"
IMPORTS_ONE = "    import lists_fonts\n"


@pytest.mark.parametrize(("body", "is_unit"), [(RUNS_ONE, False), (IMPORTS_ONE, True), (IMPORTS_ONE + RUNS_ONE, False)])
def test_a_unit_test_may_not_start_a_process_but_what_it_imports_may(tmp_path: Path, body: str, is_unit: bool) -> None:
    (tmp_path / "lists_fonts.py").write_text(LIBRARY)
    (tmp_path / "test_it.py").write_text(f"def test() -> None:\n{body}")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-plevels", "-pno:cacheprovider", "-q", f"--rootdir={tmp_path}", tmp_path],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == (0 if is_unit else 1), run.stdout
    assert ("started the process true" in run.stdout) is not is_unit
