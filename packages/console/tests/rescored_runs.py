"""A run whose results are stored in the recorded form, so that other rewards can score them, and its reward's files."""

from pathlib import Path
from typing import Any

from console_runs import run_apart

from leyden.core.data.rollout import EnqueueRollout
from leyden.core.testing.running import finished, running
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder

OWN = '''"""The run's own reward."""

import json
from pathlib import Path

from points import points

POINTS = json.loads((Path(__file__).parent / "points.json").read_text())


def score(task, result):
    """Points for the right number."""
    return points(result["number"] == task["answer"], POINTS)
'''
NEIGHBOUR = '''"""Beside the reward."""


def points(is_right, table):
    return table["right"] if is_right else 0.0


def near(task, result):
    return 1 / (1 + abs(result["number"] - task["answer"]))


def one(task):
    return 0.0


def _private(task, result):
    return 0.0
'''
SAID = {"train-v0-b0-0": [3, 4, 4], "train-v0-b0-1": [1, 2, -1], "train-v0-b0-2": [4, 4, 4]}
"""What the rollouts of each group answer; the agent fails where the number is negative."""


async def agent(task: dict[str, Any]) -> dict[str, Any]:
    """Return the number that the task says."""
    if task["says"] < 0:
        raise LookupError("no number")
    return {"number": task["says"]}


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """Return what the function in `OWN` returns."""
    return float(result["number"] == task["answer"])


def rescored_run(folder: Path) -> RunFolder:
    """Write a reward's files and a run with ten rollouts into a folder, from which the console is to be started."""
    rewards = folder / "rewards"
    rewards.mkdir()
    (rewards / "own.py").write_text(OWN)
    (rewards / "points.py").write_text(NEIGHBOUR)
    (rewards / "points.json").write_text('{"right": 1.0}')
    (rewards / "notes.py").write_text("REMARK = 'no function'\n")
    config = RunConfig(name="mine", policy="p", agent="a", reward="rewards/own.py:score")
    run = RunFolder.create(folder / "runs", config, [{"answer": 4}], {})

    async def filled() -> None:
        store = await run.store_location.open()
        requests = [
            EnqueueRollout(
                rollout_id=f"{group}-{copy}",
                input={"answer": 4, "says": says},
                mode="train",
                metadata={"task": f"0/{row}", "row": row},
            )
            for row, (group, said) in enumerate(SAID.items())
            for copy, says in enumerate(said)
        ]
        requests.append(EnqueueRollout(rollout_id="val-0", input={"answer": 4, "says": 4}, mode="val"))
        await store.enqueue_many_rollouts(requests)
        async with running(store, agent, reward=score):
            await finished(store, [request.rollout_id or "" for request in requests])
        await store.close()

    run_apart(filled())
    return run
