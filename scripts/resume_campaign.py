"""`kill -9` at random moments of a deterministic run: it ends with the weights of the undisturbed one, bit for bit.

Drivers (gateway, engine, store and learning) are killed, and with every second kill a worker; the run is gone on with
until it is finished. Then the same run is made once more, undisturbed and with another number of workers, and the two
are compared: every rollout's tokens, log-probabilities and reward, every step's numbers, every weight. The exit code is
1 when anything differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from kills import resuming
from kills.showing import Findings, show
from kills.training import EXAMPLE, GROUP_SIZE, GROUPS, ROOT, VICTIMS, TrainingCampaign
from leyden.core.trainer.run_folder.folder import RunFolder

UNDISTURBED = "undisturbed"


def kill_and_compare(
    folder: Path, kills: int, seed: int, told: Callable[[], object], victims: Sequence[str] = VICTIMS
) -> Findings:
    """Kill a run and let it finish, make it again undisturbed, and compare the two."""
    campaign = TrainingCampaign(folder, kills, seed, told, victims=victims, more=["--deterministic"])
    try:
        found = campaign.work()
    finally:
        campaign.stop()
    happened = {"drivers killed": found.kills["driver"], "workers killed": found.kills["worker"], "steps": found.steps}
    happened |= {f"killed at {moment}": times for moment, times in sorted(found.moments.items())}
    if found.wrong:
        return happened, {"on the way": found.wrong}
    said = undisturbed(folder, found.steps)
    if said:
        return happened, {"undisturbed": [said]}
    runs = campaign.run, RunFolder(folder / UNDISTURBED)
    happened["rollouts"] = json.loads(runs[1].report_file.read_text())["rollouts"]
    return happened, {
        "weights": resuming.weights_wrong(*runs),
        "steps": resuming.steps_wrong(*runs),
        "rollouts": resuming.rollouts_wrong(*runs),
    }


def undisturbed(folder: Path, steps: int) -> str:
    """Make the run without a kill; returns what it said when it failed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "leyden.core.cli", "train", f"{EXAMPLE}/agent.py:agent"),
            *("--reward", f"{EXAMPLE}/reward.py:score"),
            *("--tasks", f"{EXAMPLE}/train.jsonl", "--policy", f"{EXAMPLE}/policy"),
            *("--learning-rate", "6e-4", "--tasks-per-step", str(GROUPS), "--group-size", str(GROUP_SIZE)),
            *("--workers", "1", "--concurrency", "16", "--name", UNDISTURBED),
            *("--steps", str(steps), "--runs", str(folder), "--deterministic", "--quiet"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"code {done.returncode}: {done.stderr[-2000:]}"


def main() -> None:
    """Kill, go on, compare and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was found")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="leyden-resume-") as folder, Progress(console=console) as progress:
        bar = progress.add_task("kills", total=options.kills)
        happened, wrong = kill_and_compare(Path(folder), options.kills, options.seed, lambda: progress.advance(bar))
    differ = {f"{kind} that differ": len(lines) for kind, lines in wrong.items()}
    show(console, "killed and gone on with, against undisturbed", happened | differ, wrong)
    if options.json:
        result = {"kills": options.kills, "seed": options.seed, "happened": happened, "wrong": wrong}
        options.json.write_text(json.dumps(result, indent=1))
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
