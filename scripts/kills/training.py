"""Kills drivers and workers of a training run at random moments, and goes on with it until it is finished.

The driver is gateway, engine and store as well. Knows nothing of what must hold afterwards; see `training_checks`.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kills.processes import ENVIRONMENT, kill, wait_until, workers
from kills.store_backends import Backend
from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout
from leyden.core.trainer.rollouts.interrupted import ABANDONED
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.artifacts import LIST
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation, remember_store

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "calculator_langgraph"
WATCHED = Path(__file__).parent / "watched_agent.py"
NAME = "killed"
GROUPS, GROUP_SIZE = 4, 4
STEPS_AT_ONCE = 4
"""Steps by which the plan grows when they are done before the last kill."""
LONGEST_SECONDS = 12.0
"""Of a sitting before it is killed at any moment; loading takes about half of that."""
PATIENCE_SECONDS = 300.0
LATEST_SECONDS = 0.2
"""After the event whose moment was chosen."""
MOMENTS = ("any moment", "an answer", "a step's end", "a checkpoint")
REFUSAL = "is being trained by another process"

VICTIMS = ("worker", "driver")
"""Who is killed, by turns."""

Acknowledged = dict[str, tuple[str, str]]
"""Of each rollout that the store says is finished: the attempt that did it, and how it ended."""


@dataclass
class TrainingKills:
    """What was killed when, and what was seen on the way."""

    kills: Counter[str] = field(default_factory=Counter[str])
    moments: Counter[str] = field(default_factory=Counter[str])
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    """As of the last look; never less than before, and never different."""
    steps: int = 0
    wrong: list[str] = field(default_factory=list[str])


class TrainingCampaign:
    """One run in `folder`, begun with `more` arguments, and its killing."""

    def __init__(
        self,
        folder: Path,
        kills: int,
        seed: int,
        told: Callable[[], object],
        *,
        victims: Sequence[str] = VICTIMS,
        more: Sequence[str] = (),
        shared: Backend | None = None,
    ) -> None:
        """With `shared`, rollouts are kept there, and the run goes on on another machine when its driver was killed."""
        self.folder, self.run = folder, RunFolder(folder / NAME)
        self._shared = shared
        if shared is not None:
            remember_store(shared.uri)
        self._was_server_killed = False
        self._run_id: str | None = None
        self.journal = folder / "journal.jsonl"
        self.found = TrainingKills(steps=STEPS_AT_ONCE)
        self._random, self._told = Random(f"training {seed}"), told
        self._victims = [victims[n % len(victims)] for n in range(kills)]
        self._random.shuffle(self._victims)
        self._more = more
        self._sittings = 0
        self._driver = self._start()

    def work(self) -> TrainingKills:
        """Kill as often as planned, then let the run finish."""
        while self._victims and not self.found.wrong:
            victim, moment = self._victims[-1], self._random.choice(MOMENTS)
            if self._reached(victim, moment):
                if self._killed(victim):
                    self._victims.pop()
                    self.found.moments[moment] += 1
                    self._told()
            elif self._driver.wait() == 0:
                self.found.steps += STEPS_AT_ONCE
                self._driver = self._start()
            elif self._was_server_killed:
                self.found.moments["stopped without its store"] += 1
                self._was_server_killed = False
                self._driver = self._start()
            else:
                break
        self._finish()
        return self.found

    def stop(self) -> None:
        """End what still runs."""
        self._driver.kill()
        self._driver.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        """Begin with the run, or go on with it."""
        self._sittings += 1
        begin = [
            f"{WATCHED}:agent",
            *("--reward", f"{WATCHED}:score"),
            *("--tasks", f"{EXAMPLE}/train.jsonl", "--policy", f"{EXAMPLE}/policy"),
            *("--learning-rate", "6e-4", "--tasks-per-step", str(GROUPS), "--group-size", str(GROUP_SIZE)),
            *("--workers", "2", "--concurrency", "6", "--name", NAME),
            *("--checkpoint-every", "2"),  # so that steps are lost, and taken again from the same rollouts
        ]
        stored = [] if self._shared is None else ["--store", self._shared.uri]
        if self._shared is not None:
            begin += ["--artifacts", str(self.folder / "copies")]
        arguments = [*(["--resume", self._name] if self._has_begun() else [*begin, *self._more]), *stored]
        plan = ["--steps", str(self.found.steps), "--runs", str(self.run.path.parent), "--quiet"]
        with self._log(self._sittings).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "leyden.core.cli", "train", *arguments, *plan],
                cwd=ROOT,
                env={
                    **os.environ,
                    ENVIRONMENT: str(self.folder),
                    "LEYDEN_KILL_JOURNAL": str(self.journal),
                    "PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{EXAMPLE}",
                    "OMP_NUM_THREADS": "1",
                    "TOKENIZERS_PARALLELISM": "false",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def _name(self) -> str:
        # a run that was killed before its first record is known to its folder alone
        return f"{self._shared.uri}#{NAME}" if self._shared is not None and self._is_stored() else NAME

    def _has_begun(self) -> bool:
        return self.run.config_file.exists() or (self._sittings > 1 and self._shared is not None and self._is_stored())

    def _is_stored(self) -> bool:
        """Whether the store knows the run, so that it can go on on another machine."""
        return any((self.folder / "copies").glob(f"*/{LIST}"))

    def _location(self) -> StoreLocation | None:
        """Where the run's rollouts are; None before it has begun."""
        if self._shared is None:
            return self.run.store_location if self.run.config_file.exists() else None
        self._run_id = self._run_id or self.run.known_run_id()
        return None if self._run_id is None else StoreLocation(self._shared.uri, self._run_id)

    def _leave_machine(self) -> None:
        """Lose the machine: the run's folder is gone, and the next one has an empty folder of runs."""
        if not self._is_stored():
            return
        if self.run.path.exists():  # or the driver was killed before it had made it
            shutil.rmtree(self.run.path)
        self.run = RunFolder(self.folder / f"machine-{self._sittings}" / NAME)
        self.found.moments["on another machine"] += 1

    def _log(self, sitting: int) -> Path:
        return self.folder / f"sitting-{sitting}.log"

    def _reached(self, victim: str, moment: str) -> bool:
        """Wait for the moment of the next kill; False when the run is finished before."""
        over = lambda: self._driver.poll() is not None  # noqa: E731
        if victim == "worker":
            wait_until(lambda: workers(self._driver.pid) or over(), PATIENCE_SECONDS)
        if moment == "any moment":
            return not wait_until(over, self._random.uniform(0.0, LONGEST_SECONDS))
        before = self._signs()[moment]
        wait_until(lambda: self._signs()[moment] > before or over(), PATIENCE_SECONDS)
        return not wait_until(over, self._random.uniform(0.0, LATEST_SECONDS))

    def _signs(self) -> dict[str, int]:
        """What grows when the moment has come."""
        sizes = [file.stat().st_size if file.exists() else 0 for file in (self.journal, self.run.metrics_file)]
        begun = [int(path.name.split("step-")[1][:8]) for path in self.run.checkpoints.glob("*step-*")]
        return {"an answer": sizes[0], "a step's end": sizes[1], "a checkpoint": max(begun, default=0)}

    def _killed(self, victim: str) -> bool:
        """Kill the driver, a worker or the store's server, and look at what the store had acknowledged.

        Returns False when there was none.
        """
        if victim == "server":
            assert self._shared is not None
            self._shared.kill()
            self._shared.start()
            self._was_server_killed = True
            self.found.kills[victim] += 1
            self._look()
            return True
        there = workers(self._driver.pid) if victim == "worker" else [self._driver.pid]
        if not there or not kill(self._random.choice(there)):
            return False
        self.found.kills[victim] += 1
        if victim == "driver":
            self._driver.wait()
        self._look()
        if victim == "driver":
            self._go_on()
        return True

    def _go_on(self) -> None:
        """Resume at once, while workers of the killed driver may still live; the first time, twice at once."""
        if self._shared is not None:
            self._leave_machine()
        self._driver = self._start()
        if self.found.kills["driver"] > 1 or not self.run.config_file.exists():
            return
        first, second = self._driver, self._start()
        wait_until(lambda: first.poll() is not None or second.poll() is not None, PATIENCE_SECONDS)
        self._driver, refused = (first, second) if first.poll() is None else (second, first)
        said = self._log(self._sittings - (refused is first)).read_text()
        if refused.poll() is None or REFUSAL not in said:
            self.found.wrong.append(f"two sittings at once, and neither was refused: {said[-500:]}")
            refused.kill()

    def _look(self) -> None:
        now = asyncio.run(acknowledged(self._location()))
        before = self.found.acknowledged
        for name in before:
            if before[name] != now.get(name):
                now_is = asyncio.run(history(self._location(), name))
                self.found.wrong.append(f"{name} was finished by {before[name]}, and then by {now.get(name)}: {now_is}")
        self.found.acknowledged = now

    def _finish(self) -> None:
        """Let the run come to its end."""
        try:
            code = self._driver.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.found.wrong.append("the run does not come to its end")
            return
        if code != 0 and self._was_server_killed:
            self._was_server_killed = False
            self._driver = self._start()
            self._finish()
            return
        if code != 0:
            said = self._log(self._sittings).read_text()[-2000:]
            self.found.wrong.append(f"sitting {self._sittings} ended with code {code}: {said}")
            return
        self._look()


async def history(location: StoreLocation | None, name: str) -> str:
    """What the store has of a rollout and its attempts."""
    if location is None:
        return "there is no run"
    store = await location.open(clock=lambda: 0.0)
    try:
        rollout = await store.get_rollout_by_id(name)
        attempts = (await store.query_attempts(name)).items
    finally:
        await store.close()
    if rollout is None:
        return "it is not in the store"
    ended = [f"{one.attempt_id} {one.status} {one.metadata.get('error')}" for one in attempts]
    return f"{rollout.status}, {rollout.metadata}, at most {rollout.config.max_attempts} attempts: {'; '.join(ended)}"


async def acknowledged(location: StoreLocation | None) -> Acknowledged:
    """What the store holds as finished, read without changing anything."""
    if location is None or not location.exists:
        return {}
    store = await location.open(clock=lambda: 0.0)
    try:
        return {
            rollout.rollout_id: (rollout.attempt.attempt_id, rollout.status)
            for rollout in await store.query_rollouts()
            if isinstance(rollout, AttemptedRollout)
            and rollout.status in FINISHED_ROLLOUT
            and not rollout.metadata.get(ABANDONED)
        }
    finally:
        await store.close()
