"""The benchmark of the stores measures every backend that this machine has, and fails where a measurement does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leyden.core.testing.servers import postgres_server
from leyden.core.testing.servers.redis_server import PROGRAM

ROOT = Path(__file__).parents[1]
SMALL = [
    "--rounds",
    "1",
    "--spans",
    "20",
    "--rollouts",
    "8",
    "--wakes",
    "1",
    "--query-rollouts",
    "30",
    "--steady-spans",
    "10000",
]


def run(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "benchmarks/store.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_every_backend_is_measured_beside_its_floor(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = run(*SMALL, "--json", str(file))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    missing = {"postgresql"} if postgres_server.missing() else set[str]()
    missing |= set() if PROGRAM else {"redis"}
    assert set(found["missing"]) == missing
    backends = {"memory", "sqlite", "postgresql", "redis", "http"} - missing
    for what in ("ingest", "rollouts", "waking", "query"):
        assert {row["backend"] for row in found[what]} == backends
    assert {row["backend"] for row in found["room"]} == backends - {"http"}
    assert {row["backend"] for row in found["steady"]} == {"http"} and len(found["steady"]) == 10
    assert all(row["resident_mb"] > 1 for row in found["steady"])
    assert all(row["share"] > 0 and row["of_rows"] <= row["share"] for row in found["ingest"])
    assert len(found["ingest"]) == 8 * len(backends), "two kinds, two sizes of commits, two numbers of writers"


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--backends", "oracle"), "there is no oracle"), (("--rounds", "0"), "--rounds is 0; it must be at least 1")],
)
def test_what_cannot_be_measured_is_refused(options: tuple[str, ...], said: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
