"""A run that was killed and gone on with, against the same run undisturbed: the same rollouts, steps and weights.

Both are deterministic; whatever differs by a bit is wrong. Knows nothing of how the one was killed.
"""

import asyncio
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from kills.training_checks import Kept, read_kept
from leyden.core.data.transition import Trajectory
from leyden.core.trainer.run_folder.folder import Metrics, RunFolder

COMPARED = ("reward", "loss", "grad_norm", "entropy", "tokens_trained", "transitions_trained")
"""What `metrics.jsonl` says of a step that does not depend on the time it took."""


def weights_wrong(killed: RunFolder, undisturbed: RunFolder) -> list[str]:
    """Tensors of the trained policies that are not equal bit for bit."""
    found, expected = _weights(killed.policy), _weights(undisturbed.policy)
    if found.keys() != expected.keys() or not expected:
        return [f"the policies hold {len(found)} and {len(expected)} tensors of different names, or none"]
    return [
        f"{name} differs by up to {float((found[name] - expected[name]).abs().max()):.3g}"
        for name in expected
        if not torch.equal(found[name], expected[name])
    ]


def steps_wrong(killed: RunFolder, undisturbed: RunFolder) -> list[str]:
    """Steps whose numbers differ."""
    found, expected = ([_numbers(line) for line in run.metrics() if "loss" in line] for run in (killed, undisturbed))
    if len(found) != len(expected) or not expected:
        return [f"{len(found)} steps were noted, and {len(expected)} undisturbed"]
    pairs = enumerate(zip(found, expected, strict=True), 1)
    return [f"step {step}: {one}, and {other} undisturbed" for step, (one, other) in pairs if one != other]


def rollouts_wrong(killed: RunFolder, undisturbed: RunFolder) -> list[str]:
    """Rollouts that are in one store alone, or whose calls or reward differ."""
    found, expected = (_rollouts(asyncio.run(read_kept(run))) for run in (killed, undisturbed))
    wrong = [f"{name} is in one of the stores alone" for name in sorted(found.keys() ^ expected.keys())]
    wrong += [
        f"{name} differs: {found[name]}, and {expected[name]} undisturbed"
        for name in sorted(found.keys() & expected.keys())
        if found[name] != expected[name]
    ]
    return wrong if expected else ["the undisturbed run has no rollouts"]


def _weights(policy: Path) -> dict[str, torch.Tensor]:
    files: Any = safetensors.torch
    return files.load_file(policy / "model.safetensors")


def _numbers(line: Metrics) -> Metrics:
    return {name: line[name] for name in ("step", *COMPARED)}


def _rollouts(kept: Kept) -> dict[str, Any]:
    status = {rollout.rollout_id: rollout.status for rollout in kept.rollouts}
    return {name: (status[name], *_what_was_done(trajectory)) for name, trajectory in kept.trajectories.items()}


def _what_was_done(trajectory: Trajectory) -> tuple[Any, ...]:
    calls = [
        (call.version, list(call.prompt_ids), list(call.response_ids), list(call.logprobs))
        for call in trajectory.transitions
    ]
    return trajectory.reward, calls
