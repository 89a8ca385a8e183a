"""The template of an adapter keeps the contract: its own tests pass as they would in a package made from it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[1] / "templates" / "adapter"


def installed(folder: Path) -> None:
    """Let Python find the template's entry points in `folder`, as if it were installed."""
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(groups) + "\n")


@pytest.mark.long
def test_the_template_passes_its_own_tests(tmp_path: Path) -> None:
    installed(tmp_path)
    paths = os.pathsep.join(map(str, (TEMPLATE / "src", tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider", "."],
        cwd=TEMPLATE,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed > 20 and " skipped" not in done.stdout
