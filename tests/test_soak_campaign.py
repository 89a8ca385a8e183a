"""A short form of the soak campaign, and how it compares the queries of the start with those of the end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from soak_campaign import quickness

SCRIPT = Path(__file__).parents[1] / "scripts/soak_campaign.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_hundred_rollouts_are_accounted_for(tmp_path: Path) -> None:
    """In a process of its own, whose memory is looked at."""
    command = [sys.executable, str(SCRIPT), "--rollouts", "500", "--look-every", "2", "--json", str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads((tmp_path / "found").read_text())
    assert not any(found["wrong"].values())
    assert found["happened"]["rollouts succeeded"] == found["happened"]["rollouts begun"] == 500
    assert found["happened"]["calls recorded"] == 1000
    assert {len(measured) for measured in found["queries"].values()} == {len(found["looks"]["workers"])}


def test_queries_are_compared_by_the_first_and_the_last_fifth() -> None:
    measured = [(n, float(n)) for n in range(10)]
    assert quickness({"statistics": measured, "one": [(0, 3.0)]}) == {"statistics": (0.5, 8.5), "one": (3.0, 3.0)}
