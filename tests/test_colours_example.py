"""The example with pictures: its tasks and reward, and a run that trains its tiny vision-language policy."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_files import load

from leyden.core.data import semconv
from leyden.core.images.files import decode, read_data_url
from leyden.core.store.open import open_store

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "colours_lcel"
TASKS, REWARD = load(EXAMPLE, "make_tasks"), load(EXAMPLE, "reward")
STEPS = 12

Leyden = Callable[..., "subprocess.CompletedProcess[str]"]


def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_agent_knows_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8")
    assert "leyden" not in source.lower()
    assert "https://api.openai.com/v1" in source


def test_pictures_have_the_colour_of_their_answer_and_no_shade_is_in_both_files() -> None:
    shades: dict[str, set[tuple[int, ...]]] = {}
    for split in ("train", "val"):
        for row in rows(split):
            shade = decode(read_data_url(row["picture"])).getpixel((3, 3))
            colour = TASKS.COLOURS[row["answer"]]
            assert all(abs(one - other) <= TASKS.SPREAD for one, other in zip(shade, colour, strict=True))
            shades.setdefault(split, set()).add(shade)
    assert (len(rows("train")), len(rows("val"))) == (200, 100)
    assert not shades["train"] & shades["val"]


def test_the_files_are_what_the_script_makes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "make_tasks.py", "--out", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for split in ("train", "val"):
        assert [(row["id"], row["answer"]) for row in rows(split)] == [
            (row["id"], row["answer"])
            for row in map(json.loads, (tmp_path / f"{split}.jsonl").read_text(encoding="utf-8").splitlines())
        ]


@pytest.mark.parametrize(("answer", "reward"), [("red", 1.0), (" Red\n", 1.0), ("blue", 0.0), ("red one", 0.0)])
def test_only_the_name_of_the_colour_is_rewarded(answer: str, reward: float) -> None:
    assert REWARD.score({"answer": "red"}, answer) == reward


async def recorded_images(store: Path) -> tuple[int, set[str], set[str]]:
    """The number of recorded files, their digests, and the digests that records of calls name."""
    opened = await open_store(f"sqlite:///{store}")
    try:
        spans = [
            span for rollout in await opened.query_rollouts() for span in await opened.query_spans(rollout.rollout_id)
        ]
    finally:
        await opened.close()
    files = [str(span.attributes[semconv.IMAGE_DIGEST]) for span in spans if semconv.IMAGE_DATA in span.attributes]
    packed = [str(span.attributes[semconv.PROMPT_IMAGES]) for span in spans if semconv.PROMPT_IMAGES in span.attributes]
    return len(files), set(files), {digest for one in packed for digest, _, _ in json.loads(one)}


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_training_raises_the_reward_of_an_agent_that_sends_pictures(leyden: Leyden, tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/make_tiny_vision_policy.py", "--out", policy],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    done = leyden(
        *("train", "examples/colours_lcel/agent.py:agent", "--tasks", "examples/colours_lcel/train.jsonl"),
        *("--val", "examples/colours_lcel/val.jsonl", "--reward", "examples/colours_lcel/reward.py:score"),
        *("--policy", str(policy), "--learning-rate", "1e-3", "--steps", str(STEPS), "--seed", "0"),
        *("--name", "colours", "--runs", str(tmp_path)),
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "colours"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "importance_ratio_deviation" in line]
    assert len(steps) == STEPS
    assert steps[0]["importance_ratio_deviation"] <= 1e-5
    assert all(line["transitions_skipped"] == 0 for line in steps)
    rewards = [line["reward"] for line in steps]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1, rewards
    recorded, files, named = await recorded_images(run / "store.db")
    rollouts = json.loads((run / "report.json").read_text())["rollouts"]
    assert files == named
    assert recorded >= rollouts, "each attempt has its own"
    assert (run / "policy" / "processor_config.json").is_file()
