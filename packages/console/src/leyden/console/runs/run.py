"""`Run`: what the console reads of one run, whether from its folder or from a store alone."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leyden.console.runs.metrics_file import Line, MetricsLines, number
from leyden.core.policy.update.token_record import PolicyTokens
from leyden.core.store.base import LightningStore
from leyden.core.trainer.run_folder.report import RaisedAlert
from leyden.core.trainer.run_state import RunState
from leyden.core.trainer.why.trained_or_reason import RunFacts


PAGES = ("rollouts", "versions", "chat", "prompts", "reward", "try", "health", "bottlenecks")
"""Pages of a run beside its overview, in the order of their tabs."""


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Mean reward on one held-out set, with the agent's own sampling."""

    name: str
    tasks: int | None = None
    is_share: bool | None = None
    """Whether every task earned 0 or 1, so that the means are shares of solved tasks; None if that is unknown."""
    before: float | None = None
    after: float | None = None


class RunItem(msgspec.Struct, frozen=True, kw_only=True):
    """A run as one line of a list."""

    key: str
    name: str
    label: str = ""
    """Name by which a reader distinguishes it from the other runs; set by the catalogue."""
    folder: str | None
    source: str
    folder_here: str | None = None
    """Folder on this machine of a run that is read from a store alone."""
    experiment: str | None = None
    tags: list[str] = []
    state: RunState
    algorithm: str | None = None
    policy: str | None = None
    endpoint: str | None = None
    agent: str | None = None
    step: int = 0
    steps: int | None = None
    """Planned number of steps."""
    reward: float | None = None
    """Mean reward of the last step's rollouts."""
    held_out: list[HeldOut] = []
    alerts: list[RaisedAlert] = []
    began: float | None = None
    updated: float | None = None
    ended: float | None = None
    """When the run, or its last session, recorded its end."""
    seconds: float | None = None
    error: str | None = None
    """Why it ended early."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the run's policies and prompts."""

    version: int
    parent: int | None
    created: float | None
    held_out: dict[str, float | None] = {}
    sampled: dict[str, float | None] = {}
    has_weights: bool = False
    kept: bool = False
    why: str | None = None
    """Why this version is kept."""
    rewards: dict[str, dict[str, float]] = {}
    """Rewards by task, for each held-out set; left out of links and lists."""
    texts: dict[str, str] = {}
    """Prompts of the version by name."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command of `leyden` that fits the run."""

    what: str
    command: str


class Run(ABC):
    """One run. Everything is read again where it may have changed; nothing is written."""

    place: str
    """Where the run is kept, for messages."""
    name: str
    """Name of its folder, which commands take; of a run in a store, the name that the store has."""

    @abstractmethod
    async def item(self, key: str) -> RunItem:
        """Return the run as one line."""

    async def listed(self, key: str) -> RunItem:
        """Return the run as one line of a list of all runs, which may be a moment old."""
        return await self.item(key)

    @abstractmethod
    async def config(self) -> Mapping[str, Any]:
        """Return the run's configuration, with secrets masked."""

    @abstractmethod
    async def report(self) -> Mapping[str, Any] | None:
        """Return the run's report; None while there is none."""

    @abstractmethod
    async def versions(self) -> Sequence[Version]:
        """Return the versions in order."""

    @abstractmethod
    async def metrics(self) -> MetricsLines:
        """Return all lines of the run's metrics, as `metrics.jsonl` has them."""

    @abstractmethod
    async def store(self) -> LightningStore | None:
        """Return the store of the run's rollouts, opened for reading; None before it exists."""

    @abstractmethod
    async def facts(self) -> RunFacts:
        """Return what decides whether a rollout was trained."""

    async def expected_end(self) -> float | None:
        """Return when a running run will end; None if that cannot be known."""
        return None

    def commands(self) -> Sequence[Command]:
        """Return commands that fit the run."""
        return ()

    def token_record(self, step: int) -> dict[str, PolicyTokens] | None:
        """Return what a step computed for each trained token; None if that is not kept here."""
        del step
        return None

    async def held_out_tasks(self, name: str) -> Sequence[Any]:
        """Return the tasks of a held-out set by their row; empty if they are not kept here."""
        del name
        return ()

    async def policy_folders(self) -> Sequence[Path]:
        """Return folders of policies on this machine that may have the run's tokenizer, the most likely first."""
        return ()

    @property
    def path(self) -> Path | None:
        """The run's folder; None for a run that is read from a store alone."""
        return None

    def pages(self, config: Mapping[str, Any]) -> Sequence[str]:
        """Return the pages that have something to show for a run with this configuration, or say how to get it."""
        return PAGES if config.get("policy") else [name for name in PAGES if name != "chat"]

    @property
    def is_process_gone(self) -> bool:
        """Whether the process that ran the rollouts is known to be gone, so that none of them is still running."""
        return False

    @property
    def is_still_there(self) -> bool:
        """Whether the run is where it was opened; False if it was moved or deleted, or another has taken its place."""
        return True

    @property
    def others(self) -> int:
        """Number of other runs in the run's store, whose rollouts cannot be distinguished from its own."""
        return 0

    async def close(self) -> None:
        """Release what is open."""
        return None


def held_out_of(lines: Iterable[Line]) -> list[HeldOut]:
    """Return the first and the last evaluation of each held-out set in a run's metrics."""
    found: dict[str, list[float | None]] = {}
    for line in lines:
        if "success" in line and "held_out" in line:
            found.setdefault(str(line["held_out"]), []).append(number(line["success"]))
    return [
        HeldOut(name=name, before=values[0], after=values[-1] if len(values) > 1 else None)
        for name, values in found.items()
    ]
