"""A small real run with a critic: it learns beside the policy, and a run that goes on is one that was not stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from leyden.core.policy.checkpoints.retention import latest_checkpoint
from leyden.core.policy.checkpoints.state import read_training

Arguments = Callable[..., list[str]]
Leyden = Callable[..., "CompletedProcess[str]"]

pytestmark = [pytest.mark.timeout(600)]
CRITIC = ("advantage=gae", "critic=own", "critic.learning_rate=1e-3", "critic.epochs=2")


def kept(run: Path) -> dict[str, torch.Tensor]:
    """The critic of a run's last checkpoint."""
    last = latest_checkpoint(run / "checkpoints")
    assert last is not None
    state = read_training(last)
    assert state["extra"]["critic_steps"] == 2
    return state["extra"]["critic"]


@pytest.mark.campaign
def test_a_run_that_goes_on_ends_with_the_same_policy_and_critic(
    train_arguments: Arguments, leyden: Leyden, tmp_path: Path
) -> None:
    how = [word for option in CRITIC for word in ("--set", option)]
    more = (*how, "--deterministic", "--no-check", "--quiet")
    for name, steps in (("straight", "2"), ("stopped", "1")):
        done = leyden(*train_arguments(tmp_path, name, *more, "--steps", steps))
        assert done.returncode == 0, done.stderr
    done = leyden("train", "--resume", "stopped", "--runs", str(tmp_path), "--steps", "2", "--quiet")
    assert done.returncode == 0, done.stderr

    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    weights = [(run / "policy/model.safetensors").read_bytes() for run in (straight, stopped)]
    assert weights[0] == weights[1]
    critics = [kept(run) for run in (straight, stopped)]
    assert all(torch.equal(tensor, critics[1][name]) for name, tensor in critics[0].items())
    assert critics[0]["head.weight"].abs().max() > 0
    lines = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "value_loss" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert steps[0]["value_mean"] == 0.0 != steps[1]["value_mean"]
    assert all(line["value_states"] == line["transitions"] for line in steps)


def test_a_critic_that_nobody_reads_is_refused_before_anything_starts(
    train_arguments: Arguments, leyden: Leyden, tmp_path: Path
) -> None:
    done = leyden(*train_arguments(tmp_path, "refused", "--set", "critic=own"))
    assert done.returncode == 2
    assert "neither credit nor advantage reads the critic" in done.stderr
    assert not (tmp_path / "refused").exists()
