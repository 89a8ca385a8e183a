"""Messages between a server of runs and its clients, as JSON."""

from typing import Any

import msgspec

from leyden.core.data.rollout import Task
from leyden.core.server.status import RunStatus
from leyden.core.trainer.config import RunConfig

MOST_WAIT = 20.0
"""Longest time in seconds for which the server holds a request for news."""


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to train: all that the server needs besides the policy and the agent's code."""

    config: RunConfig
    tasks: list[Task] = []
    held_out: dict[str, list[Task]] = {}
    """Rows of the held-out sets by name."""
    memory: int | None = None
    cores: int | None = None


class Resumption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to resume, with what changes."""

    steps: int | None = None
    device: str | None = None
    settings: dict[str, Any] = {}
    memory: int | None = None
    cores: int | None = None


class VersionNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a run's policy and prompts."""

    version: int
    created: float
    """Seconds since the epoch."""
    prompts: dict[str, str] = {}
    """Texts of the version's prompts, by name."""
    metrics: dict[str, float] = {}
    """Metrics of the step that made it."""
    held_out: dict[str, float | None] = {}
    """Mean reward by held-out set, where the version was evaluated."""
    weights: str | None = None
    """Folder of its weights on the server; None if they are not kept."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a run since a client's last request."""

    status: RunStatus
    output: str = ""
    """What the run printed since."""
    offset: int = 0
    """Place in the output after it."""
    metrics: list[dict[str, Any]] = []
    """Metrics of the steps since."""
    versions: list[VersionNotice] = []


class AttachAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agents of a run attach."""

    run: str
    state: str
    url: str
    token: str

    def __repr__(self) -> str:
        return f"AttachAddress({self.run!r}, {self.url!r})"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused."""

    error: str
    """One line."""
    usage: bool = True
    """Whether the request cannot work as it is, so that repeating it is no use."""
