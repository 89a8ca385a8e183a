"""The benchmark of shards measures what it promises, and fails where something is lost or claimed twice."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leyden.core.testing.servers.redis_server import PROGRAM

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.integration


def run(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "benchmarks/shards.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_shards_are_measured_beside_the_store_alone(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    small = ("--spans", "4000", "--writers", "2", "--rollouts", "40", "--claimers", "2", "--shards", "2")
    done = run("--backends", "sqlite", *small, "--json", str(file))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    assert [row["shards"] for row in found["write"]] == [row["shards"] for row in found["claim"]] == [0, 2]
    assert found["write"][0]["x plain"] == 1.0 and found["write"][1]["x plain"] > 0
    assert all(row["once"] for row in found["claim"])
    assert len(found["killed"]) == (1 if PROGRAM else 0)
    assert all(row["lost"] == 0 and row["there"] >= row["acknowledged"] > 0 for row in found["killed"])


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--backends", "oracle"), "there is no oracle"), (("--spans", "0"), "'0' must be a whole number of at least 1")],
)
def test_what_cannot_be_measured_is_refused(options: tuple[str, ...], said: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
