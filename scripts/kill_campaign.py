"""`kill -9` at random moments: nothing that was answered is missing, nothing that was finished is run or trained twice.

One half of the kills hit a training run, its driver (which is gateway, engine and store as well) or one of its workers;
the run is gone on with until it is finished. The other half hit a gateway of its own, while OpenAI's clients are at
work beside it. What clients, agents and engine noted on the disk is then held against the stores, the metrics and the
report. The exit code is 1 when something does not hold, or in a long campaign never happened.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from kills import gateway_checks, training_checks
from kills.gateway import GatewayCampaign
from kills.processes import marked, wait_until
from kills.showing import Findings, show
from kills.store_backends import BACKENDS, Backend
from kills.training import VICTIMS, TrainingCampaign

ENDING_SECONDS = 10.0
"""For which what was started may outlive the campaign."""
LONG = 20
"""From so many kills on, everything must have happened."""


def kill_training(
    folder: Path, kills: int, seed: int, told: Callable[[], object], shared: Backend | None = None
) -> Findings:
    """Kill a training run, go on with it, and hold what it kept against what was noted.

    With `shared`, it keeps its rollouts in that store, whose server is killed as well.
    """
    victims = VICTIMS if shared is None else (*VICTIMS, "server")
    campaign = TrainingCampaign(folder, kills, seed, told, victims=victims, shared=shared)
    try:
        found = campaign.work()
    finally:
        campaign.stop()
    wait_until(lambda: not marked(folder), ENDING_SECONDS)
    wrong = {"on the way": found.wrong, "processes left": [str(pid) for pid in marked(folder)]}
    if found.wrong:
        return {"kills": dict(found.kills)}, wrong
    run, kept = campaign.run, asyncio.run(training_checks.read_kept(campaign.run))
    wrong |= {
        "answers lost": training_checks.answers_lost(campaign.journal, kept),
        "scores wrong": training_checks.scores_wrong(campaign.journal, kept),
        "failures unexplained": training_checks.failures_unexplained(kept),
        "steps wrong": training_checks.steps_wrong(run, kept, found.steps),
        "report wrong": training_checks.report_wrong(run, kept, found.steps),
        "store broken": [] if shared is not None else training_checks.store_broken(run.path / "store.db"),
    }
    return {
        "drivers killed": found.kills["driver"],
        "workers killed": found.kills["worker"],
        **({} if shared is None else {"servers of the store killed": found.kills["server"]}),
        **{f"killed at {moment}": times for moment, times in sorted(found.moments.items())},
        "steps": found.steps,
        "rollouts": len(kept.rollouts),
        "answers in the store": len(kept.answers),
        "attempts that ended early": sum(map(len, kept.errors.values())),
        "rollouts given up": sum(rollout.status != "succeeded" for rollout in kept.rollouts),
        "largest deviation of a first importance ratio": training_checks.largest_deviation(run),
    }, wrong


def kill_with_store(kind: str, folder: Path, kills: int, seed: int, told: Callable[[], object]) -> Findings:
    """Kill a training run that keeps its rollouts in a store of this kind, and the store's server."""
    with BACKENDS[kind]() as shared:
        return kill_training(folder, kills, seed, told, shared)


def kill_gateway(folder: Path, kills: int, seed: int, told: Callable[[], object]) -> Findings:
    """Kill a gateway under its clients, and hold its records against what they and the engine noted."""
    campaign = GatewayCampaign(folder, kills, seed, told)
    try:
        found = campaign.work()
    finally:
        campaign.stop()
    journals = campaign.journal, campaign.engine_log
    records = asyncio.run(gateway_checks.read_records(campaign.store_file, *journals, found.lives))
    wrong = {
        "on the way": found.wrong,
        "answers lost": gateway_checks.answers_lost(records),
        "answered twice": gateway_checks.answered_twice(records),
        "calls given up": gateway_checks.calls_given_up(records),
        "calls unrecorded": gateway_checks.calls_unrecorded(records),
        "store broken": training_checks.store_broken(campaign.store_file),
    }
    happened = {
        "gateways killed": found.kills,
        "of these while starting": found.killed_while_starting,
        "answers received in full": len(records.answers),
        "streams cut": len(records.lost),
        "answers given again by a later gateway": gateway_checks.given_again(records),
        "calls of the engine interrupted": gateway_checks.drawn_again(records),
        "calls that the engine failed": sum(span.status.code == "error" for span in records.spans),
    }
    if kills >= LONG:
        wrong["never happened"] = [name for name, count in happened.items() if not count]
    return happened, wrong


def main() -> None:
    """Run both halves and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--store",
        choices=sorted(BACKENDS),
        help="keep the rollouts of the training in a store of this kind, kill its server, too, and go on on "
        "another machine whenever the driver was killed; without gateway",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was found")
    options = parser.parse_args()
    console, result, failed = Console(), dict[str, Any](), False
    half_of_kills = options.kills // 2
    halves: dict[str, tuple[Callable[..., Findings], int]] = {
        "training": (kill_training, half_of_kills),
        "gateway": (kill_gateway, options.kills - half_of_kills),
    }
    if options.store:
        halves = {f"training, {options.store}": (partial(kill_with_store, options.store), options.kills)}
    for name, (half, kills) in halves.items():
        with (
            tempfile.TemporaryDirectory(prefix=f"leyden-kills-{name}-") as folder,
            Progress(console=console) as progress,
        ):
            bar = progress.add_task(f"kills: {name}", total=kills)
            happened, wrong = half(Path(folder), kills, options.seed, lambda bar=bar: progress.advance(bar))
        show(console, name, happened, wrong)
        result[name] = {"happened": happened, "wrong": wrong}
        failed = failed or any(wrong.values())
    if options.json:
        options.json.write_text(json.dumps({"kills": options.kills, "seed": options.seed, **result}, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
