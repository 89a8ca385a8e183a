"""Trainings that a test stops or kills once they have taken some steps."""

import json
import signal
import time
from pathlib import Path

from warm_process import Running

from leyden.core.store.open import open_store


def trained_steps(run: Path) -> list[int]:
    """The steps that a run's metrics tell of, whole lines only."""
    if not (run / "metrics.jsonl").exists():
        return []
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    return [line["step"] for line in map(json.loads, lines) if "reward" in line]


def wait_for_step(run: Path, step: int, process: Running) -> None:
    """Wait until `process` has taken `step` steps of `run`."""
    deadline = time.monotonic() + 120
    while len(trained_steps(run)) < step:
        assert process.returncode is None, process.ended(0)
        assert time.monotonic() < deadline, "no step was taken"
        time.sleep(0.02)


def kill(process: Running) -> None:
    """Kill it outright."""
    process.send_signal(signal.SIGKILL)
    process.ended(10)


async def recorded(run: Path) -> tuple[str, list[int], list[int]]:
    """Status, steps with metrics, and versions of the run's record in its store."""
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        (found,) = await store.query_runs()
        metrics = await store.query_metrics(found.run_id)
        versions = await store.query_policy_versions(run_id=found.run_id, sort_by="version")
        steps = [one.step for one in metrics if "reward" in one.values]
        return found.status, steps, [version.version for version in versions]
    finally:
        await store.close()
