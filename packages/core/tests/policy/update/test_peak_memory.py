"""Peak memory of whole updates in processes of their own: no tokens × vocabulary matrix is kept, of any weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[5]
SMALL, LARGE = 1024, 32_768
FEW, MANY = 1024, 2048
MATRIX = LARGE * (MANY - FEW) * 4 / (1 << 20)
"""MiB of the logits, once, of as many tokens as are more."""

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process's peak memory"),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    found = tmp_path_factory.mktemp("memory") / "found.json"
    sizes = ["--vocabularies", str(SMALL), str(LARGE), "--tokens", str(FEW), str(MANY)]
    command = [sys.executable, str(ROOT / "benchmarks/update_memory.py"), *sizes, "--json", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(found.read_text())["rows"]


def growth(rows: list[dict[str, Any]], way: str, vocab: int, lora: bool) -> float:
    """MiB that the further tokens add to the peak."""
    few, many = (row["peak_mib"] for row in rows if (row["way"], row["vocab"], row["lora"]) == (way, vocab, lora))
    return many - few


@pytest.mark.parametrize("lora", [False, True])
def test_more_tokens_of_a_large_vocabulary_take_no_more_than_those_of_a_small_one(
    rows: list[dict[str, Any]], lora: bool
) -> None:
    assert growth(rows, "plain", LARGE, lora) > 2 * MATRIX, "the plain way shows what would be seen"
    assert growth(rows, "Leyden", LARGE, lora) < MATRIX / 4
    # Logits of the small vocabulary fit in one chunk, so their few MiB are in its growth.
    assert growth(rows, "Leyden", LARGE, lora) < growth(rows, "Leyden", SMALL, lora) + 16


def test_both_ways_take_the_same_update(rows: list[dict[str, Any]]) -> None:
    losses = {way: [row["loss"] for row in rows if row["way"] == way] for way in ("Leyden", "plain")}
    assert losses["Leyden"] == pytest.approx(losses["plain"], rel=1e-4)
