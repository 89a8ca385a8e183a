"""A run that was killed at any moment opens as one that ended by itself."""

import json
import signal
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leyden.console.runs.catalogue import Catalogue
from leyden.console.server import Console

pytestmark = [pytest.mark.long, pytest.mark.campaign, pytest.mark.timeout(900)]

MOMENTS = 6
VIEWS = ("", "/steps", "/rollouts", "/why", "/health", "/bottlenecks", "/prompts")


def test_a_run_that_was_killed_at_six_moments_opens_the_same(start: Any, train_arguments: Any, tmp_path: Path) -> None:
    running = start(*train_arguments(tmp_path, "whole", "--steps", "4", "--no-check"))
    began = time.monotonic()
    assert running.ended(200).returncode == 0
    whole = time.monotonic() - began
    for moment in range(MOMENTS):
        running = start(*train_arguments(tmp_path, f"killed-{moment}", "--steps", "4", "--no-check"))
        time.sleep(whole * (moment + 0.5) / MOMENTS)
        with suppress(ProcessLookupError):  # this one was quicker
            running.send_signal(signal.SIGKILL)
        running.ended(60)

    with TestClient(Console(Catalogue([tmp_path])).application()) as client:
        found = client.get("/api/runs").json()
        assert found["problems"] == []
        states = {run["key"]: run["state"] for run in found["runs"]}
        assert states.pop("whole") == "finished"
        # killed before it had locked its folder, "not finished"
        assert set(states.values()) <= {"interrupted", "not finished", "finished"}
        assert "interrupted" in states.values()
        for key in ("whole", *states):
            check(client, key, tmp_path / key)


def check(client: TestClient, key: str, folder: Path) -> None:
    """Every view answers, and shows all complete lines of the metrics and all rollouts of the store."""
    for view in VIEWS:
        answer = client.get(f"/api/runs/{key}{view}")
        is_early = view == "/why" and answer.status_code == 404  # killed before it had a rollout
        assert answer.status_code == 200 or is_early, (key, view, answer.text)
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else []
    steps = [line["step"] for line in map(json.loads, lines) if "held_out" not in line and "alert" not in line]
    assert client.get(f"/api/runs/{key}/steps").json()["steps"] == steps
    ends = time.monotonic() + 60
    while (found := client.get(f"/api/runs/{key}/rollouts").json())["indexed"] < stored(folder):
        assert time.monotonic() < ends, found
        time.sleep(0.1)
    assert (found["indexed"], found["problem"]) == (stored(folder), None)


def stored(folder: Path) -> int:
    """Number of rollouts in the run's store; 0 before it has one."""
    file = folder / "store.db"
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as connection:
        made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'rollouts'").fetchone()
        return connection.execute("SELECT count(*) FROM rollouts").fetchone()[0] if made else 0
