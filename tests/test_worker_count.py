"""How many workers a run has, and how that changes, changes nothing that a deterministic run learns."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Arguments = Callable[..., list[str]]
Leyden = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.timeout(600)]


def test_the_weights_of_a_deterministic_run_do_not_depend_on_the_number_of_workers(
    train_arguments: Arguments, leyden: Leyden, tmp_path: Path
) -> None:
    weights: list[bytes] = []
    for name, workers in (("one", ["--workers", "1"]), ("more", ["--workers", "3", "--max-workers", "4"])):
        more = [*("--steps", "2", "--concurrency", "2", "--deterministic", "--no-check"), *workers]
        done = leyden(*train_arguments(tmp_path, name, *more))
        assert done.returncode == 0, done.stderr
        weights.append((tmp_path / name / "policy/model.safetensors").read_bytes())
    assert weights[0] == weights[1]
