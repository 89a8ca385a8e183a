"""Calls in thousands through every part of the wire, and whether each was recorded exactly, once, and as whose it was.

Rollouts of three agents each, in tasks, threads and processes, call two policies with real clients through the real
gateway, in every dialect, streaming or not, with images, tools, formats, penalties and truncation, hang-ups, cut
connections, retries and weight updates in flight. Then the engines' own logs, the gateway's records, the marks in the
prompts, the images that agents sent and what they received are compared with each other, answers with their formats,
and log-probabilities with plain forward passes. The exit code is 1 when something does not hold, or never happened.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from campaign.checks import all_wrong
from campaign.dialects.table import DIALECTS
from campaign.evidence import Evidence
from campaign.plan import VIEWER, make_plans
from campaign.policies import make_policies
from campaign.recompute import Differences, recomputed
from campaign.recorded import Recorded
from campaign.stage import Campaign, crews
from campaign.summary import counts, never_happened
from campaign.versions import Versions
from leyden.core.grammar.tokenizer import load_tokenizer

TOLERANCE = 1e-4
SHOWN = 20
"""Wrong calls that are printed, of each kind."""


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=64, help="rollouts at once, of three agents each")
    parser.add_argument("--processes", type=int, default=6, help="worker processes beside those for tasks and threads")
    parser.add_argument("--updates", type=int, default=24, help="weight updates while calls are in flight")
    parser.add_argument("--dialects", default=",".join(DIALECTS), help=f"some of {', '.join(DIALECTS)}")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    return parser.parse_args()


def run(options: argparse.Namespace, folder: Path, console: Console) -> Evidence:
    """Run a campaign, with its store and its policies in `folder`."""
    plans = make_plans(options.calls, options.seed, options.dialects.split(","))
    with Progress(console=console) as progress:
        calls = progress.add_task("calls", total=options.calls)
        on_call = partial(progress.advance, calls)
        campaign = Campaign(plans, make_policies(folder), updates=options.updates, on_call=on_call)
        return asyncio.run(campaign.run(folder, crews(options.at_once, options.processes)))


def find(evidence: Evidence, dialects: Sequence[str], at_once: int, console: Console) -> dict[str, Any]:
    """Compare the sources with each other; `wrong` lists what does not agree, by check."""
    recorded = Recorded(evidence, load_tokenizer(str(evidence.policies[VIEWER])))
    wrong = all_wrong(recorded)
    with Progress(console=console) as progress:
        updates = sum(evidence.seen[f"weight updates of {name}"] + 1 for name in evidence.policies)
        on_version = partial(progress.advance, progress.add_task("versions recomputed", total=updates))
        policies = {name: Versions(folder) for name, folder in evidence.policies.items()}
        differences = recomputed(recorded.drawn, policies, recorded.files, on_version)
    counted = counts(recorded)
    wrong["log-probabilities"] = imprecise(differences)
    wrong["what should have happened"] = [f"{what}: never" for what in never_happened(counted, dialects)]
    if counted.get("most rollouts at once", 0) < min(at_once, len(evidence.plans)):
        wrong["what should have happened"].append(f"{at_once} rollouts at once: never")
    return {"wrong": wrong, "log-probabilities": asdict(differences), "counts": counted}


def imprecise(differences: Differences) -> list[str]:
    """Return what is wrong with the recorded log-probabilities, or with their recomputation."""
    wrong: list[str] = []
    if not max(differences.raw, differences.sampling) < TOLERANCE:
        wrong.append(f"{differences.worst_call}: {differences.raw:.2e} raw, {differences.sampling:.2e} drawn from")
    if not differences.tokens:
        wrong.append("no token was recomputed")
    if not differences.by_a_wrong_version > 100 * TOLERANCE:
        wrong.append(f"a wrong version differs by {differences.by_a_wrong_version:.2e} only: it would not be noticed")
    if differences.by_wrong_images is not None and not differences.by_wrong_images > 100 * TOLERANCE:
        wrong.append(f"wrong images differ by {differences.by_wrong_images:.2e} only: they would not be noticed")
    return wrong


def show(found: dict[str, Any], console: Console) -> None:
    """Print what happened, and the first of what is wrong."""
    table = Table(title="The wire campaign", show_header=False)
    for what, count in found["counts"].items():
        table.add_row(what, f"{count:,}")
    for what, value in found["log-probabilities"].items():
        table.add_row(f"log-probabilities: {what}", f"{value:.2e}" if isinstance(value, float) else str(value))
    table.add_section()
    for what, wrong in found["wrong"].items():
        table.add_row(what, "[red]" + f"{len(wrong):,} wrong" if wrong else "[green]all right")
    console.print(table)
    for what, wrong in found["wrong"].items():
        for line in wrong[:SHOWN]:
            console.print(f"{what}: {line}", style="red", markup=False, highlight=False)


def main() -> None:
    """Run a campaign and print what was found."""
    options, console = arguments(), Console()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        evidence = run(options, Path(folder), console)
        seconds = time.monotonic() - began
        found = find(evidence, options.dialects.split(","), options.at_once, console)
    show(found, console)
    console.print(f"{len(evidence.outcomes)} calls in {seconds:.0f} s")
    if options.json:
        chosen = {key: str(value) for key, value in vars(options).items() if key != "json"}
        options.json.write_text(json.dumps({"options": chosen, "seconds": seconds, **found}, indent=1) + "\n")
    sys.exit(1 if any(found["wrong"].values()) else 0)


if __name__ == "__main__":
    main()
