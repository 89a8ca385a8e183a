"""Runs the tests again and again, and says which failed how often: a test that fails once in fifty runs is broken.

    python scripts/repeat_tests.py --runs 10 --random-order
    python scripts/repeat_tests.py --runs 5 --pauses packages/core/tests/store

Each run starts from clean folders: caches, examples of Hypothesis and temporary files are its own. `--random-order`
mixes the files, and the tests of each file, by a seed that is printed; `--pauses` stops random processes of the run,
its workers, their children and servers, for 0.1 to 0.8 seconds each. The exit code is 1 when a test failed in any run.
Of each run that failed the log and the JUnit file stay under `--logs`, in a folder that is called after the seed.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import psutil

ROOT = Path(__file__).parents[1]
PAUSE_SECONDS = (0.1, 0.8)
BETWEEN_SECONDS = (0.05, 0.6)
"""From one pause to the next."""
MARK = "LEYDEN_REPEATED_RUN"
"""Environment variable that all processes of a run inherit, those included whose parent has ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is repeated, and how."""

    paths: Sequence[str]
    marks: str
    workers: int
    random_order: bool
    pauses: bool
    logs: Path


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    number: int
    seed: int
    seconds: float
    exit_code: int
    tests: int = 0
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Why, by the test's name."""
    pauses: int = 0
    folder: Path | None = None


def run_once(plan: Plan, number: int, seed: int) -> Outcome:
    """Run the tests once, in folders of their own; those of a run without a failure go."""
    folder = plan.logs / f"run-{number:03d}-seed-{seed}"
    folder.mkdir(parents=True)
    scratch = Path(tempfile.mkdtemp(prefix="lr-"))
    scratch.chmod(0o755)  # servers of the tests may run as another user
    environment = surroundings(os.environ, scratch)
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command(plan, seed, folder, scratch), cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        pauser = Pauser(process.pid, environment[MARK], random.Random(seed)) if plan.pauses else None
        try:
            exit_code = process.wait()
        finally:
            pauses = pauser.stop() if pauser else 0
    tests, failed = read_results(folder / "results.xml")
    if exit_code != 0 and not failed:
        failed = {"(pytest itself)": f"exit code {exit_code}: see {folder / 'log'}"}
    outcome = Outcome(number, seed, time.monotonic() - began, exit_code, tests, failed, pauses, folder)
    shutil.rmtree(scratch, ignore_errors=True)
    if not failed:
        shutil.rmtree(folder)
    return outcome


def command(plan: Plan, seed: int, folder: Path, scratch: Path) -> list[str]:
    """Return pytest's command line, as in the Makefile."""
    return [
        *(sys.executable, "-m", "pytest", "-q", "-n", str(plan.workers), "--dist", "loadfile"),
        *(() if plan.paths else ("--forked-tests=all",)),  # a few files need few of the libraries
        *("--no-loadscope-reorder", "-m", plan.marks, "-p", "no:cacheprovider", "--basetemp", str(scratch / "base")),
        *("--junitxml", str(folder / "results.xml")),
        *(("--random-order-bucket", "module", "--random-order-seed", str(seed)) if plan.random_order else ()),
        *plan.paths,
    ]


def surroundings(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return a run's environment: one torch thread, and folders of its own."""
    return {
        **environment,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "TMPDIR": str(scratch),
        MARK: str(scratch),
    }


def read_results(path: Path) -> tuple[int, dict[str, str]]:
    """Return how many tests there were, and why tests failed, by name; nothing where pytest wrote no file."""
    if not path.exists():
        return 0, {}
    cases = [*ElementTree.parse(path).iter("testcase")]
    failed: dict[str, str] = {}
    for case in cases:
        for what in (*case.findall("failure"), *case.findall("error")):
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            failed[name] = (what.get("message") or what.text or what.tag).strip().splitlines()[0]
    return len(cases), failed


class Pauser:
    """Stops random processes of a run, one at a time, until `stop`."""

    def __init__(self, parent: int, mark: str, chance: random.Random) -> None:
        self._parent, self._mark, self._chance = parent, mark, chance
        self._ended = threading.Event()
        self._pauses = 0
        self._thread = threading.Thread(target=self._pause_until_ended)
        self._thread.start()

    def stop(self) -> int:
        """End; returns how many pauses there were."""
        self._ended.set()
        self._thread.join()
        return self._pauses

    def _pause_until_ended(self) -> None:
        while not self._ended.wait(self._chance.uniform(*BETWEEN_SECONDS)):
            found = processes_of(self._parent, self._mark)
            if found:
                self._pause(self._chance.choice(found))

    def _pause(self, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
            self._pauses += 1
            try:
                self._ended.wait(self._chance.uniform(*PAUSE_SECONDS))
            finally:
                process.send_signal(signal.SIGCONT)


def processes_of(parent: int, mark: str) -> list[psutil.Process]:
    """Return the processes below `parent`, and those of its run whose own parent has ended."""
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.Error):
        found = {process.pid: process for process in psutil.Process(parent).children(recursive=True)}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in (*found, os.getpid(), parent) and process.environ().get(MARK) == mark:
                found[process.pid] = process
    return list(found.values())


def report(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what to print at the end."""
    counts = Counter(name for outcome in outcomes for name in outcome.failed)
    seconds = sorted(outcome.seconds for outcome in outcomes)
    lines = [
        f"{len(outcomes)} runs of {max(outcome.tests for outcome in outcomes)} tests, {seconds[0]:.0f} to "
        f"{seconds[-1]:.0f} s each; {sum(bool(outcome.failed) for outcome in outcomes)} with a failure"
    ]
    for name, count in counts.most_common():
        lines.append(f"{count} of {len(outcomes)}: {name}")
        for outcome in outcomes:
            if name in outcome.failed:
                lines.append(f"    seed {outcome.seed}, {outcome.folder}: {outcome.failed[name][:200]}")
    return lines


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Repeat the tests, and say which failed how often.")
    parser.add_argument("paths", nargs="*", help="files or folders; all tests by default")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--random-order", action="store_true", help="mix files, and tests within files")
    parser.add_argument("--pauses", action="store_true", help="stop random processes of the run for a moment")
    parser.add_argument("--seed", type=int, default=None, help="of the first run; the next ones count on from there")
    parser.add_argument("-m", "--marks", default="not long", help="as for pytest")
    parser.add_argument("-n", "--workers", type=int, default=(os.cpu_count() or 1) + 1)
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "leyden-repeated-tests")
    return parser.parse_args()


def main() -> int:
    """Run, print and return the exit code."""
    given = read_arguments()
    plan = Plan(given.paths, given.marks, given.workers, given.random_order, given.pauses, given.logs.resolve())
    first = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    outcomes: list[Outcome] = []
    for number in range(given.runs):
        outcomes.append(run_once(plan, number + 1, first + number))
        last = outcomes[-1]
        says = f"{len(last.failed)} failed" if last.failed else "passed"
        paused = f", {last.pauses} pauses" if given.pauses else ""
        print(f"run {last.number} of {given.runs}, seed {last.seed}: {says}, {last.seconds:.0f} s{paused}", flush=True)
    print("\n".join(report(outcomes)))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
