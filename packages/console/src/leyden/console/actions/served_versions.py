"""Versions that the console serves for chats, each by a job that runs `leyden models serve`."""

import asyncio
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from leyden.console.actions.jobs import Job, Jobs
from leyden.core.cli.commands.models.serve import KEY, PARENT
from leyden.core.errors import LeydenError
from leyden.core.masking import remember_secret

MOST = 2
"""Number of versions that are served at the same time: each takes the memory of a policy."""
IDLE_MINUTES = 10
"""Minutes without a message after which a version is no longer served."""
POLL_SECONDS = 0.1
KIND = "serve"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is served: a version of a run, and one of its policies if it has several."""

    run: Path
    version: int
    policy: str | None = None


class Served(msgspec.Struct, kw_only=True):
    """A version that is served, or that will be as soon as its policy is loaded."""

    place: Place
    job: Job
    key: str
    """API key of the server; it never reaches a page."""


class ServedVersions:
    """The versions that are served now, the one that was used last at the end."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._served: dict[Place, Served] = {}
        self._starting = asyncio.Lock()

    def of_run(self, run: Path) -> Sequence[Served]:
        """Return the versions of a run that are served."""
        return [one for one in self._served.values() if one.place.run == run and one.job.ended is None]

    async def find(self, place: Place, key_of_run: str) -> Served:
        """Return a version, and begin to serve it if it is not; others are stopped first, the least used at first."""
        async with self._starting:
            known = self._served.pop(place, None)
            if known is None or known.job.ended is not None:
                await self._make_room()
                known = self._start(place, key_of_run)
            self._served[place] = known
            return known

    async def url(self, served: Served) -> str:
        """Wait until a version is served, and return its base URL; raises LeydenError with the reason if it is not."""
        printed = self._jobs.printed(served.job.id)
        while True:
            has_ended = served.job.ended is not None
            line = printed.read_bytes().partition(b"\n")[0] if printed.exists() else b""
            if line.startswith(b"{") and not has_ended:
                found: dict[str, Any] = msgspec.json.decode(line)
                return found["url"]
            if has_ended:
                raise LeydenError(self.reason(served))
            await asyncio.sleep(POLL_SECONDS)

    def reason(self, served: Served) -> str:
        """Return why a version is no longer served."""
        job = served.job
        if job.state in ("stopped", "finished"):
            return (
                f"this version was stopped, since it was not used for {IDLE_MINUTES} minutes, {MOST} others were "
                "requested, or its job was stopped; send the message again"
            )
        said = job.output[-1].removeprefix("leyden: ") if job.output else f"the server ended with {job.exit_code}"
        return f"this version is not served: {said}"

    async def _make_room(self) -> None:
        self._served = {place: one for place, one in self._served.items() if one.job.ended is None}
        while len(self._served) >= MOST:
            oldest = next(iter(self._served.values()))
            self._jobs.stop(oldest.job.id)
            await self._jobs.ended(oldest.job.id)
            del self._served[oldest.place]

    def _start(self, place: Place, key_of_run: str) -> Served:
        key = secrets.token_urlsafe(24)
        remember_secret(key)
        name = f"{place.run.name}:{place.version}"
        arguments = ["models", "serve", name, "--runs", str(place.run.parent), "--port", "0", "--json"]
        arguments += ["--idle-minutes", str(IDLE_MINUTES)]
        if place.policy is not None:
            arguments += ["--policy", place.policy]
        job = self._jobs.start(
            KIND,
            f"serve {name}" + (f" {place.policy}" if place.policy else ""),
            arguments,
            subject={"run": key_of_run, "version": str(place.version)},
            at_once=True,
            environment={KEY: key, PARENT: str(os.getpid())},
        )
        return Served(place=place, job=job, key=key)
