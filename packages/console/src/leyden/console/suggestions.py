"""Suggestions for a run: a search for better settings that `leyden tune` could make, with what it would start from."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from leyden.console.http.answers import as_json
from leyden.console.plain import plain
from leyden.console.runs.catalogue import Catalogue
from leyden.core.cli.run_file import read_run_file
from leyden.core.errors import LeydenError
from leyden.core.tuning.plan import STUDY_FILE
from leyden.core.tuning.suggestions import Suggestion, suggested

MOST_STEM = 32
"""Characters of a run's name in the name of its study."""


class SuggestedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that is usually worth searching."""

    key: str
    domain: str
    own: Any
    why: str
    changes_cost: bool


class Suggested(msgspec.Struct, frozen=True, kw_only=True):
    """A search that could be made for a run."""

    problem: str | None = None
    """Why no search can be made from this run; None if one can."""
    study: str | None = None
    """Key of the study that the run is a trial of."""
    config: str = ""
    """The run file of the command."""
    runs: str = ""
    name: str = ""
    """A name that no study has yet."""
    steps: int | None = None
    held_out: list[str] = []
    """Names of the run's held-out sets; trials are compared on the first one."""
    keys: list[SuggestedKey] = []
    past: int = 0
    """Number of other finished runs of the same experiment and agent, from which a study may begin."""


class Suggestions:
    """The requests about suggestions for the runs of a catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/api/runs/{key}/suggestions", as_json(self._answer))]

    async def _answer(self, request: Request) -> Suggested:
        return await self.of(request.path_params["key"])

    async def of(self, key: str) -> Suggested:
        """Return what could be searched for the run with this key; raises RunError if there is no such run."""
        run = await self._catalogue.run(key)
        folder = run.path
        if folder is None:
            return Suggested(
                problem="This run is read from a store. A search needs its folder, which has its settings."
            )
        if (folder.parent / STUDY_FILE).exists():
            place = folder.parent.resolve()
            study = next((one for one, path in self._catalogue.studies().items() if path.resolve() == place), None)
            return Suggested(problem="This run is a trial of a study.", study=study)
        config = folder / "config.yaml"
        try:
            settings, keys = await asyncio.to_thread(_read, config)
        except LeydenError as error:
            return Suggested(problem=str(error))
        held_out = [str(one["name"]) for one in settings.get("held_out") or ()]
        return Suggested(
            problem=_problem(held_out, bool(keys)),
            config=str(config),
            runs=str(folder.parent),
            name=_free_name(folder),
            steps=settings.get("steps"),
            held_out=held_out,
            keys=[
                SuggestedKey(
                    key=one.key, domain=one.domain, own=plain(one.own), why=one.why, changes_cost=one.changes_cost
                )
                for one in keys
            ],
            past=await self._past(key),
        )

    async def _past(self, key: str) -> int:
        items = (await self._catalogue.listing()).runs
        own = next(item for item in items if item.key == key)
        return sum(
            item.key != key
            and item.state == "finished"
            and (item.source, item.agent, item.experiment) == (own.source, own.agent, own.experiment)
            for item in items
        )


def _read(config: Path) -> tuple[dict[str, Any], list[Suggestion]]:
    settings = read_run_file(config)
    return settings, suggested(settings)


def _problem(held_out: list[str], has_keys: bool) -> str | None:
    if not held_out:
        return "This run has no held-out set, by which trials are compared. Give leyden tune one with --val."
    return None if has_keys else "This run's algorithm has none of the settings that are usually searched."


def _free_name(folder: Path) -> str:
    stem = f"{folder.name[:MOST_STEM]}-tune"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(name for name in names if not (folder.parent / name).exists())
