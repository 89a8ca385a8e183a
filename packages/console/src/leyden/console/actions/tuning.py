"""The action that starts `leyden tune` for a run, as a job that goes on when the console ends."""

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from leyden.console.actions.jobs import Job, Jobs
from leyden.console.http.answers import as_json, body_of
from leyden.console.suggestions import Suggestions


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search that a page requests; its values are options of `leyden tune`, which checks them."""

    run: str
    """Key of the run whose settings are the default."""
    name: str
    search: list[str]
    trials: int
    seeds: str
    steps: int | None = None
    confirm: str | None = None
    past: bool = True


class TuningRequests:
    """The request that starts a search."""

    def __init__(self, suggestions: Suggestions, jobs: Jobs) -> None:
        self._suggestions, self._jobs = suggestions, jobs

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/api/tuning", as_json(self._start), methods=["POST"])]

    async def _start(self, request: Request) -> Job:
        wanted = await body_of(request, TuneRequest)
        found = await self._suggestions.of(wanted.run)
        if not found.config:
            raise ValueError(found.problem or "no search can be made from this run")
        words = arguments(wanted, found.config, found.runs)
        refusal = await self._jobs.refusal([*words, "--validate", "--quiet"])
        if refusal is not None:
            raise ValueError(refusal)
        return self._jobs.start(
            "tune",
            f"Search for settings: {wanted.name}",
            words,
            subject={"run": wanted.run, "study": wanted.name, "folder": str(Path(found.runs) / wanted.name)},
            detached=True,
        )


def arguments(wanted: TuneRequest, config: str, runs: str) -> list[str]:
    """Return the words of the command after `leyden`."""
    words = ["tune", "--config", config]
    for one in wanted.search:
        words += ["--search", one]
    words += ["--name", wanted.name, "--trials", str(wanted.trials), "--seeds", wanted.seeds]
    if wanted.steps is not None:
        words += ["--steps", str(wanted.steps)]
    if wanted.confirm:
        words += ["--confirm", wanted.confirm]
    if not wanted.past:
        words.append("--no-past")
    return [*words, "--runs", runs]
