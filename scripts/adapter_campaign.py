"""Crowds of three agents, in one framework after the other, and whether each call was recorded as whose it was.

For each framework, rollouts of one system of a planner, a solver with a tool and a critic run at the same time through
its adapter, the real gateway and a scripted engine. Then the engine's own log, in whose prompts every agent and rollout
has its name, is held against what was recorded: attempt, agent, node, parent, and the transitions when two of the
three agents are selected. The exit code is 1 when something does not hold.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trios.checks import all_wrong
from trios.stage import run

FRAMEWORKS = sorted(path.stem.removeprefix("on_") for path in (Path(__file__).parent / "trios").glob("on_*.py"))
SHOWN = 10
"""Wrong calls that are printed, of each kind."""


def campaign(framework: str, rollouts: int) -> dict[str, Any]:
    """Run one framework's campaign and return what was found; `wrong` lists what does not hold, by check."""
    began = time.monotonic()
    evidence = asyncio.run(run(framework, rollouts))
    spans = sum(map(len, evidence.spans.values()))
    found = {"rollouts": rollouts, "calls": len(evidence.log), "spans": spans, "wrong": all_wrong(evidence)}
    return found | {"seconds": time.monotonic() - began}


def show(framework: str, found: dict[str, Any], console: Console) -> None:
    """Print what happened, and the first of what is wrong."""
    table = Table(title=framework, show_header=False)
    for what in ("rollouts", "calls", "spans"):
        table.add_row(what, f"{found[what]:,}")
    table.add_row("seconds", f"{found['seconds']:.1f}")
    table.add_section()
    for what, wrong in found["wrong"].items():
        table.add_row(what, f"[red]{len(wrong):,} wrong" if wrong else "[green]all right")
    console.print(table)
    for what, wrong in found["wrong"].items():
        for line in wrong[:SHOWN]:
            console.print(f"{what}: {line}", style="red", markup=False, highlight=False)


def main() -> None:
    """Run the campaigns and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help=f"some of {', '.join(FRAMEWORKS)}")
    parser.add_argument("--rollouts", type=int, default=64, help="at once")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    options, console = parser.parse_args(), Console()
    found: dict[str, dict[str, Any]] = {}
    for framework in options.frameworks.split(","):
        found[framework] = campaign(framework, options.rollouts)
        show(framework, found[framework], console)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if any(wrong for one in found.values() for wrong in one["wrong"].values()) else 0)


if __name__ == "__main__":
    main()
