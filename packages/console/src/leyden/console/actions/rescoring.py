"""Requests of the reward debugger: the source of a run's reward, scoring with another, its result, and saving it."""

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from leyden.console.actions.edited_reward import NAME, TEXT, encoded, write_edited
from leyden.console.actions.jobs import Job, Jobs
from leyden.console.actions.rescored import MOST_ROLLOUTS, Result, Rows, order_of
from leyden.console.http.answers import as_json, body_of, whole_number
from leyden.console.reward_source import Place, RewardSource, check_text, decoded, place_of, reward_source
from leyden.console.runs.run import Run
from leyden.core.cli.options import RUNS, read_reward_weights
from leyden.core.data.bounds import check_bound
from leyden.core.errors import RunError, UsageError
from leyden.core.trainer.rescore.stored_rollouts import check_which

RESULT = "rescored.json"
KIND = "rescore"
KEPT = 4
"""Number of results that stay in memory."""
NEW_FILE = "reward.py"
"""File for the reward of a run that has none of its own."""

RunOf = Callable[[str], Awaitable[Run]]
"""Returns the run of a key; raises RunError if there is none."""


class Scoring(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body: score a run's rollouts with a reward."""

    reward: str
    """Import string; with `text`, of the function that the text is an edit of."""
    text: str | None = None
    rollouts: str = "train"
    limit: int | None = None
    timeout: float = 30.0
    weights: list[str] = []
    """Weights of dimensions, each as `NAME=WEIGHT`."""


class Saving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body: write an edited reward to a new file."""

    path: str
    text: str


class RewardRequests:
    """The requests about rewards of one console; without `jobs`, only that for the source of a run's reward."""

    def __init__(self, run_of: RunOf, jobs: Jobs | None) -> None:
        self._run_of, self._jobs = run_of, jobs
        self._results: dict[str, Result] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        run = "/api/runs/{key}"
        reading: list[BaseRoute] = [Route(f"{run}/reward", as_json(self._source))]
        if self._jobs is None:
            return reading
        return [
            *reading,
            Route(f"{run}/rescore", as_json(self._score), methods=["POST"]),
            Route(f"{run}/reward/save", as_json(self._save), methods=["POST"]),
            Route("/api/jobs/{job}/rescored", as_json(self._summary)),
            Route("/api/jobs/{job}/rescored/rollouts", as_json(self._rows)),
        ]

    async def _source(self, request: Request) -> RewardSource:
        folder, config = await self._run(request)
        own = config.get("reward")
        command = shlex.join(["leyden", *_rescore(folder), "--reward", own or f"{NEW_FILE}:score"])
        return await asyncio.to_thread(
            reward_source,
            own,
            dict(config.get("reward_weights") or {}),
            request.query_params.get("file", ""),
            command,
            alone=self._jobs is None,
        )

    async def _score(self, request: Request) -> Job:
        jobs = self._allowed()
        given = await body_of(request, Scoring)
        folder, _ = await self._run(request)
        options = _options(given)
        place, job_folder = place_of(given.reward), jobs.new_folder()
        reward, subject = given.reward, {"run": request.path_params["key"], "reward": given.reward}
        if given.text is not None:
            check_text(given.text)
            reward, subject = write_edited(job_folder, place, given.text), {**subject, "edited": "yes"}
        out = job_folder / RESULT
        arguments = [*_rescore(folder), "--reward", reward, *options, "--out", str(out), "--quiet"]
        title = f"Reward {_name(place)}{' (edited)' if given.text is not None else ''} on {folder.name}"
        job = jobs.start(KIND, title, arguments, folder=job_folder, subject=subject)
        if given.text is not None:
            file = Path(reward.rpartition(":")[0])
            jobs.show_as(job.id, {str(one): f"the {NAME}" for one in (file, file.resolve())})
        return job

    async def _summary(self, request: Request) -> dict[str, Any]:
        job, result = await self._result(request)
        text = self._allowed().folder_of(job.id) / TEXT
        return {
            **result.summary(),
            "job": job.id,
            "subject": job.subject,
            "reward": job.subject["reward"],
            "text": decoded(text) if text.exists() else None,
        }

    async def _rows(self, request: Request) -> Rows:
        _, result = await self._result(request)
        order = order_of(request.query_params.get("sort", "rank"))
        limit = whole_number(request, "limit") or MOST_ROLLOUTS
        return result.rows(order, whole_number(request, "offset"), min(limit, MOST_ROLLOUTS))

    async def _save(self, request: Request) -> dict[str, str]:
        given = await body_of(request, Saving)
        _, config = await self._run(request)
        check_text(given.text)
        return {"source": await asyncio.to_thread(_saved, given, _folder_of(config.get("reward")))}

    async def _run(self, request: Request) -> tuple[Path, Any]:
        run = await self._run_of(request.path_params["key"])
        if run.path is None:
            raise RunError("this run is read from a store alone; its rewards can be scored where its folder is")
        return run.path, await run.config()

    async def _result(self, request: Request) -> tuple[Job, Result]:
        jobs = self._allowed()
        job = jobs.job(request.path_params["job"])
        path = jobs.folder_of(job.id) / RESULT
        if job.kind != KIND or job.state != "finished":
            raise UsageError(f"job {job.id} has no new rewards: it is {job.kind}, {job.state}")
        if job.id not in self._results:
            result = await asyncio.to_thread(Result, path)
            self._results = dict([*self._results.items(), (job.id, result)][-KEPT:])
        return job, self._results[job.id]

    def _allowed(self) -> Jobs:
        assert self._jobs is not None  # there are no routes to the callers otherwise
        return self._jobs


def _rescore(folder: Path) -> list[str]:
    where = [] if folder.parent == RUNS else ["--runs", str(folder.parent)]
    return ["rescore", folder.name, *where]


def _options(given: Scoring) -> list[str]:
    """Return the options of the command; raises ValueError for one that cannot work."""
    try:
        check_which(given.rollouts)
        check_bound("timeout", given.timeout, "the time limit")
        if given.limit is not None:
            check_bound("limit", given.limit, "the number of rollouts")
        read_reward_weights(given.weights)
    except UsageError as error:
        raise ValueError(str(error).replace("--reward-weight takes", "a weight is written as")) from None
    words = ["--rollouts", given.rollouts, "--timeout", f"{given.timeout:g}"]
    if given.limit is not None:
        words += ["--limit", str(given.limit)]
    for weight in given.weights:
        words += ["--reward-weight", weight]
    return words


def _name(place: Place) -> str:
    return f"{place.file.name}:{place.function}"


def _folder_of(own: str | None) -> Path | None:
    """Return the folder of a run's own reward; None if it has none, or if that is not here."""
    try:
        return None if own is None else place_of(own).file.parent
    except UsageError:
        return None


def _saved(given: Saving, own: Path | None) -> str:
    """Write a new file, and return its path; raises ValueError for a path that is not allowed or is taken."""
    here = Path.cwd().resolve()
    path = Path(given.path.strip())
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ValueError(f"{given.path!r} is no name of a Python file, such as {NEW_FILE}")
    folder = path.parent.resolve()
    allowed = [here] if own is None or own.is_relative_to(here) else [own, here]
    if not any(folder.is_relative_to(one) for one in allowed):
        raise ValueError(f"{folder} is not below {' or '.join(map(str, allowed))}, where rewards can be saved")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    target = folder / path.name
    try:
        with target.open("xb") as file:
            file.write(encoded(given.text))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ValueError(f"{target} exists, and is not overwritten: choose another name") from None
    return str(target.relative_to(here)) if target.is_relative_to(here) else str(target)
