"""A run that version 42280a9 has begun, and that was killed, is read, exported and resumed.

`scripts/write_older_data.py` made the files in `older_run`: the run's folder, and what that version exported from it.
"""

import asyncio
import gzip
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disturbed_runs import recorded, trained_steps

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.open import open_store

Leyden = Callable[..., "subprocess.CompletedProcess[str]"]

OLDER = Path(__file__).with_name("older_run")
NAME, STEPS, TAKEN = "killed", 4, 2
NEW_COLUMNS = {"capture", "trained_in", "not_trained", "not_trained_detail", "remarks", "queue"}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    with tarfile.open(OLDER / f"{NAME}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def exported_before(table: str) -> list[dict[str, Any]]:
    """Rows that the older version wrote."""
    return [json.loads(line) for line in gzip.decompress((OLDER / f"{table}.jsonl.gz").read_bytes()).splitlines()]


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{table}.jsonl").read_text().splitlines()]


def as_before(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the columns that the older version did not have."""
    return {name: value for name, value in row.items() if name not in NEW_COLUMNS}


def succeeded(leyden: Leyden, *arguments: str) -> str:
    done = leyden(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_older_run_exports_what_its_own_version_exported(leyden: Leyden, runs: Path) -> None:
    succeeded(leyden, "export", NAME, "--runs", str(runs), "--to", str(runs / "rows"), "--format", "jsonl")
    for table in ("rollouts", "transitions"):
        found = rows(runs / "rows", table)
        assert [as_before(row) for row in found] == exported_before(table), table
    finished = [row for row in rows(runs / "rows", "rollouts") if row["mode"] == "train" and row["end_time"]]
    assert finished
    assert {(row["trained_in"], row["not_trained"]) for row in finished} == {(None, "not recorded why")}


@pytest.mark.parametrize("form", ["parquet", "datasets"])
def test_an_older_run_is_exported_in_every_format(leyden: Leyden, runs: Path, form: str) -> None:
    to = runs / "rows"
    said = succeeded(leyden, "export", NAME, "--runs", str(runs), "--to", str(to), "--format", form, "--json")
    counted = json.loads(said)["rows"]
    assert counted.keys() == {"rollouts", "spans", "transitions"}
    for table in ("rollouts", "transitions"):
        assert counted[table] == len(exported_before(table)), table


def test_an_older_run_is_shown(leyden: Leyden, runs: Path) -> None:
    where = ("--runs", str(runs))
    shown = succeeded(leyden, "show", NAME, *where, "--json")
    assert [json.loads(line)["step"] for line in shown.splitlines()] == list(range(1, TAKEN + 1))
    assert f"continue with: leyden train --resume {NAME} --runs {runs}" in succeeded(leyden, "show", NAME, *where)
    assert "train-v0-b0-0-0" in succeeded(leyden, "show", NAME, "train-v0-b0-0-0", *where)
    assert "24 training rollouts: 0 trained, 6 not, 18 not recorded" in succeeded(leyden, "why", NAME, *where)
    assert "not recorded why" in succeeded(leyden, "why", NAME, "train-v0-b0-0-0", *where)
    listed = [json.loads(line) for line in succeeded(leyden, "models", "list", NAME, *where, "--json").splitlines()]
    assert [line["version"] for line in listed] == list(range(TAKEN + 1))


def test_an_older_run_is_resumed_to_its_end(leyden: Leyden, runs: Path) -> None:
    run, where = runs / NAME, ("--runs", str(runs))
    before = asyncio.run(finished_attempts(run))
    assert before
    succeeded(leyden, "train", "--resume", NAME, *where, "--quiet")
    assert trained_steps(run) == list(range(1, STEPS + 1))
    assert json.loads((run / "report.json").read_text())["steps"] == STEPS
    assert before.items() <= asyncio.run(finished_attempts(run)).items(), "a finished rollout was run again"
    assert asyncio.run(recorded(run)) == ("succeeded", list(range(1, STEPS + 1)), list(range(STEPS + 1)))
    found = json.loads(succeeded(leyden, "why", NAME, *where, "--json"))
    assert found["steps"] == STEPS - TAKEN and found["rollouts_trained"] > 0
    reasons = {one["reason"] for one in found["rollouts_left_out"]}
    assert "not recorded why" in reasons and "no step learned from it" not in reasons
    succeeded(leyden, "export", NAME, *where, "--to", str(runs / "rows"), "--format", "jsonl")
    finished = {name: row for row in exported_before("rollouts") if row["end_time"] for name in [row["rollout_id"]]}
    after = {row["rollout_id"]: as_before(row) for row in rows(runs / "rows", "rollouts")}
    assert {name: after[name] for name in finished} == finished
    trained = {step for row in rows(runs / "rows", "transitions") for step in row["trained_in"] or ()}
    assert trained == set(range(TAKEN + 1, STEPS + 1))


async def finished_attempts(run: Path) -> dict[str, str]:
    store = await open_store(f"sqlite:///{run / 'store.db'}", clock=lambda: 0.0)
    try:
        rollouts = (await store.query_rollouts(status_in=["succeeded"])).items
        return {one.rollout_id: one.attempt.attempt_id for one in rollouts if isinstance(one, AttemptedRollout)}
    finally:
        await store.close()
