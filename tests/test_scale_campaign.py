"""A short form of the scale campaign, and that its checks see what they are there for."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scale.accounts import Accounts, unaccounted
from scale.watching import Look, below, growing, look

SCRIPT = Path(__file__).parents[1] / "scripts/scale_campaign.py"


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_hundred_agents_at_once_come_to_their_end(tmp_path: Path) -> None:
    """In a process of its own: one that has driven Ray keeps much of it."""
    scale = ["--agents", "100", "--workers", "2", "--actors", "2", "--minutes", "0.75", "--look-every", "5"]
    command = [sys.executable, str(SCRIPT), *scale, "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert not any(found["wrong"].values())
    assert found["happened"]["rollouts succeeded"] == found["happened"]["rollouts begun"] > 100
    assert {"workers", "actors", "Ray"} < set(found["looks"])
    assert found["looks"]["workers"][-1]["processes"] > 90, "each rollout has a process of its own"


def accounts(calls: int = 20, unknown: int = 0, **statuses: int) -> Accounts:
    return Accounts(statuses=Counter(statuses), tries=Counter({1: 10}), calls=calls, unknown=unknown)


def test_accounts_that_add_up_are_not_complained_about() -> None:
    assert unaccounted(accounts(succeeded=10), 10) == []


@pytest.mark.parametrize(
    ("kept", "complaints"),
    [
        (accounts(succeeded=9, calls=18), 2),
        (accounts(succeeded=9, running=1, calls=18), 2),
        (accounts(succeeded=9, failed=1, calls=18), 1),
        (accounts(succeeded=10, calls=19), 1),
        (accounts(succeeded=10, unknown=1), 1),
    ],
)
def test_what_does_not_add_up_is_noticed(kept: Accounts, complaints: int) -> None:
    assert len(unaccounted(kept, 10)) == complaints


def looks(*mib: float, files: int = 10) -> dict[str, list[Look]]:
    return {"workers": [Look(15.0 * n, 1, each, files, 5) for n, each in enumerate(mib)]}


def test_memory_may_rise_while_all_begins_and_not_later() -> None:
    assert growing(looks(10, 100, 200, *[400] * 7)) == []
    assert growing(looks(*[400] * 6, 430, 500, 560, 620)) == ["workers: memory grew from 400 to 590 MiB"]
    assert growing(looks(*[10] * 6, 12, 14, 14, 14)) == [], "a few MiB are no growth"


def test_files_are_counted() -> None:
    assert growing(looks(10, 10, files=9000)) == ["workers: one process had 9000 files or threads"]


def test_a_process_is_looked_at_with_what_it_has_started() -> None:
    assert next(below(os.getpid())) == os.getpid()
    own = look(os.getpid(), 0.0)["run: store, gateway, engine"]
    assert own.processes == 1
    assert own.mib > 1
    assert own.files > 0
    assert own.threads > 0
