"""A training beside the console: seconds of its steps, and the CPU time of the console and the browsers."""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from leyden.core.trainer.run_folder.folder import RunFolder
from pages.processes import Served, opened, served, tabs_of, window_of_tabs

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/calculator_langgraph"
STEP_SECONDS = 120
"""Longest time for a step of the training."""
VIEWS = ("", "/rollouts", "/health", "/bottlenecks")
"""What the tabs show of the run, in turn."""


def training(given: argparse.Namespace, temporary: Path) -> dict[str, Any]:
    """Measure the steps of one training, in turns without a console, with tabs of one window, and with windows."""
    runs = temporary / "training"
    runs.mkdir()
    with (
        trained(runs, "run", given.steps * (3 * given.rounds + 1)) as folder,
        served(runs) as console,
        opened(given.chromium) as browser,
        window_of_tabs(given.chromium, temporary / "profile") as window,
    ):
        addresses = [f"{console.address}/#/runs/run{VIEWS[number % len(VIEWS)]}" for number in range(given.tabs)]
        pages = [browser.new_page() for _ in addresses]
        turns = {side: Turns() for side in ("without", "tabs", "windows")}
        for _ in range(given.rounds):
            console.process.send_signal(signal.SIGSTOP)
            turns["without"].measure(folder, given.steps, console)
            console.process.send_signal(signal.SIGCONT)
            with tabs_of(window, addresses):
                turns["tabs"].measure(folder, given.steps, console)
            for page, address in zip(pages, addresses, strict=True):
                page.goto(address)
            turns["windows"].measure(folder, given.steps, console)
            for page in pages:
                page.goto("about:blank")
    medians = {side: statistics.median(found.seconds()) for side, found in turns.items()}
    halves = [statistics.median(turns["without"].seconds()[at::2]) for at in (0, 1)]
    return {
        "tabs": given.tabs,
        "median_seconds": medians,
        "ratio": {side: medians[side] / medians["without"] for side in ("tabs", "windows")},
        "ratio_of_halves_without": halves[1] / halves[0],
        "share_of_cpu_time": {side: found.shares() for side, found in turns.items()},
        "seconds": {side: found.steps for side, found in turns.items()},
    }


class Turns:
    """The turns of one way to look at the training: seconds of their steps, and the CPU time of who looks."""

    def __init__(self) -> None:
        self.steps: list[list[float]] = []
        self._used, self._passed = {"console": 0.0, "browser": 0.0}, 0.0

    def measure(self, folder: RunFolder, steps: int, console: Served) -> None:
        """Wait for the steps of one turn."""
        before, began = cpu_seconds(console), time.monotonic()
        self.steps.append(next_steps(folder, steps))
        after = cpu_seconds(console)
        self._used = {who: used + after[who] - before[who] for who, used in self._used.items()}
        self._passed += time.monotonic() - began

    def seconds(self) -> list[float]:
        """Return the seconds of all steps."""
        return [one for turn in self.steps for one in turn]

    def shares(self) -> dict[str, float]:
        """Return the shares of the machine's CPU time."""
        return {who: used / self._passed / (os.cpu_count() or 1) for who, used in self._used.items()}


def cpu_seconds(console: Served) -> dict[str, float]:
    """Return the CPU time that the console and the processes of the browser have used."""
    children = psutil.Process().children(recursive=True)
    browser = [child.cpu_times() for child in children if "chrom" in child.name()]
    return {"console": console.cpu_seconds(), "browser": sum(times.user + times.system for times in browser)}


@contextmanager
def trained(runs: Path, name: str, steps: int) -> Generator[RunFolder]:
    """Train the example during the block, which gets the run's folder after the first step."""
    command = [sys.executable, "-m", "leyden.core.cli", "train", f"{EXAMPLE / 'agent.py'}:agent"]
    command += ["--tasks", str(EXAMPLE / "train.jsonl"), "--reward", f"{EXAMPLE / 'reward.py'}:score"]
    command += ["--policy", str(EXAMPLE / "policy"), "--learning-rate", "6e-4", "--steps", str(steps), "--no-check"]
    process = subprocess.Popen([*command, "--runs", str(runs), "--name", name, "--quiet"], cwd=ROOT)
    folder = RunFolder(runs / name)
    try:
        while len(seconds_of_steps(folder)) < 1:
            if process.poll() is not None:
                raise RuntimeError(f"the training ended with exit code {process.returncode}")
            time.sleep(0.2)
        yield folder
    finally:
        process.terminate()
        process.wait()


def seconds_of_steps(folder: RunFolder) -> list[float]:
    """Return the seconds of each step that has been written down."""
    return [step["seconds"] for step in folder.metrics() if "seconds" in step]


def next_steps(folder: RunFolder, count: int) -> list[float]:
    """Wait for `count` further steps, and return the seconds of each but the first, which began before."""
    done = len(seconds_of_steps(folder))
    ends = time.monotonic() + count * STEP_SECONDS
    while len(found := seconds_of_steps(folder)) < done + count:
        if time.monotonic() > ends:
            raise RuntimeError(f"the training has taken {len(found) - done} of {count} steps, and goes on no further")
        time.sleep(0.2)
    return found[done + 1 : done + count]
