"""Two kills of the resume campaign, and that its comparison sees a single bit."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from kills import resuming
from leyden.core.trainer.run_folder.folder import RunFolder
from resume_campaign import UNDISTURBED, kill_and_compare

FILES: Any = safetensors.torch


async def add_a_rollout(run: RunFolder) -> None:
    store = await run.store_location.open()
    try:
        await store.start_rollout("one more", mode="train")
    finally:
        await store.close()


def differ_by_a_bit(run: RunFolder) -> None:
    file = run.policy / "model.safetensors"
    weights = FILES.load_file(file)
    name = min(weights)
    weights[name].view(torch.int32).flatten()[0] ^= 1
    FILES.save_file(weights, file, metadata={"format": "pt"})


def differ_in_a_step(run: RunFolder) -> None:
    lines = run.metrics()
    lines[-1]["loss"] += 1e-15
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_a_run_that_was_killed_twice_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    happened, wrong = kill_and_compare(tmp_path, 2, 3, lambda: None)

    assert not any(wrong.values()), wrong
    assert (happened["drivers killed"], happened["workers killed"]) == (1, 1)
    assert happened["rollouts"] >= 16 * happened["steps"]
    same = RunFolder(tmp_path / UNDISTURBED)
    shutil.copytree(same.path, tmp_path / "other")
    other = RunFolder(tmp_path / "other")
    asyncio.run(add_a_rollout(other))
    differ_by_a_bit(other)
    differ_in_a_step(other)
    assert len(resuming.rollouts_wrong(other, same)) == 1
    assert len(resuming.weights_wrong(other, same)) == 1
    assert len(resuming.steps_wrong(other, same)) == 1
