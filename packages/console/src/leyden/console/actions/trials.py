"""Trials: two variants of a run's prompts or policy on the same tasks, run by `leyden prompts try` as a job.

The job records its rollouts into a store in its folder. The console reads that store as it reads any other, under a key
of its own, so that the pages of rollouts and calls show them, too.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from leyden.console.actions.jobs import Job, Jobs
from leyden.console.actions.trial_command import TrialRequest, TrialSource
from leyden.console.http.answers import as_json, body_of, whole_number
from leyden.console.plain import counted, one_line, plain
from leyden.console.rollout_index import Row
from leyden.console.run_view import RunView
from leyden.console.runs.catalogue import Catalogue
from leyden.console.runs.run import Run, RunItem
from leyden.console.runs.stored_run import StoredRun, StoreFolder
from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.errors import LeydenError, RunError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.prompt_file import read_prompts
from leyden.core.trainer.run_state import RunState

FIND, TRY = "prompts-find", "prompts-try"
"""Kinds of jobs."""
PROMPTS, STORE = "prompts.yaml", "trial.db"
MOST_TASKS, MOST_REPEATS = 1000, 100
INPUT_CHARACTERS = 400
"""Part of a task's input that is sent for the list."""
_STATES: dict[str, RunState] = {
    "waiting": "running",
    "running": "running",
    "finished": "finished",
    "stopped": "stopped",
}


class FindRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to find the prompts of a run's agent."""

    tasks: str


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a trial."""

    id: str
    variant: str
    row: int
    """Number of its task, from 0."""
    repeat: int
    status: str
    reward: float | None
    calls: int
    seconds: float | None
    error: str


class TrialRun(StoredRun):
    """The store of a trial as a run. Its file exists as soon as the job records something."""

    def __init__(
        self, job: Job, file: Path, source: Run, tasks: list[Any], texts: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._file = StoreFolder(f"sqlite:///{file}")
        super().__init__(self._file, "")
        self.job, self.file, self.tasks, self.texts = job, file, tasks, texts
        self._tried = source

    async def item(self, key: str) -> RunItem:
        """Return the trial as one line."""
        state = _STATES.get(self.job.state, "failed")
        return RunItem(key=key, name=self.job.title, folder=None, source=self._file.uri, state=state)

    async def store(self) -> LightningStore | None:
        """Return the store; None before it exists."""
        return await super().store() if self.file.exists() else None

    def pages(self, config: Mapping[str, Any]) -> Sequence[str]:
        """Return the page of the rollouts: a trial has no steps, versions, prompts or reward of its own."""
        del config
        return ("rollouts",)

    @property
    def is_process_gone(self) -> bool:
        """Whether the job has ended."""
        return self.job.ended is not None

    async def policy_folders(self) -> list[Path]:
        """Return the folders of the policies of the run that is tried."""
        return list(await self._tried.policy_folders())

    async def close(self) -> None:
        """Close the store."""
        await self._file.close()


class Trials:
    """The requests about trials; without `jobs`, a page learns only which commands it would start."""

    def __init__(self, jobs: Jobs | None, catalogue: Catalogue, view: Callable[[str], Awaitable[RunView]]) -> None:
        self._jobs, self._catalogue, self._view = jobs, catalogue, view

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        path = "/api/runs/{key}/try"
        if self._jobs is None:
            return [Route(path, as_json(self._offer))]
        return [
            Route(path, as_json(self._offer), methods=["GET"]),
            Route(path, as_json(self._try), methods=["POST"]),
            Route(f"{path}/find", as_json(self._find), methods=["POST"]),
            Route("/api/jobs/{job}/trial", as_json(self._trial)),
        ]

    async def _offer(self, request: Request) -> dict[str, Any]:
        key = request.path_params["key"]
        run = await self._catalogue.run(key)
        try:
            source = _source(run)
            sets = source.task_sets()
        except (LeydenError, OSError) as error:
            return {"problem": one_line(error)}
        if not sets:
            return {"problem": "the run's folder has no tasks"}
        found = self._found(key)
        return {
            "problem": None,
            "tasks": sets,
            "texts": source.texts(found),
            "templates": bool(source.config.prompts),
            "versions": source.prompt_versions(),
            "policies": source.policies(),
            "reward": source.config.reward,
            "commands": source.shell_commands(f"sqlite:///{STORE}"),
        }

    async def _find(self, request: Request) -> Job:
        key, body = request.path_params["key"], await body_of(request, FindRequest)
        jobs, source = self._allowed(), _source(await self._catalogue.run(key))
        folder = jobs.new_folder()
        words = source.find(body.tasks, folder / PROMPTS)
        return jobs.start(FIND, f"find the prompts of {key}", words, folder=folder, subject={"run": key})

    async def _try(self, request: Request) -> Job:
        key, body = request.path_params["key"], await body_of(request, TrialRequest)
        for name, value, most in (("count", body.count, MOST_TASKS), ("repeats", body.repeats, MOST_REPEATS)):
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be 1 to {most}, got {value}")
        jobs, run = self._allowed(), await self._catalogue.run(key)
        source = _source(run)
        tasks = source.tasks(body.tasks, body.count)
        folder = jobs.new_folder()
        file = folder / STORE
        found = self._found(key)
        words = source.compare(body, folder, f"sqlite:///{file}", found)
        texts = {name: source.sent(variant, found) for name, variant in body.variants.items()}
        labels = {name: source.label(variant) for name, variant in body.variants.items()}
        subject = {"run": key, **labels, "tasks": body.tasks, "repeats": str(body.repeats)}
        job = jobs.start(
            TRY, f"{key}: two variants on {counted(len(tasks), 'task')}", words, folder=folder, subject=subject
        )
        known = {trial_key(one.id) for one in jobs.listing()}
        for forgotten in set(self._catalogue.unlisted) - known:
            await self._catalogue.remove(forgotten)
        self._catalogue.add(trial_key(job.id), TrialRun(job, file, run, tasks, texts))
        return job

    async def _trial(self, request: Request) -> dict[str, Any]:
        """Return the rollouts of a trial that are new or changed since a cursor; at first also tasks and texts."""
        job = self._allowed().job(request.path_params["job"])
        key = trial_key(job.id)
        view = await self._view(key)
        if not isinstance(view.run, TrialRun):
            raise RunError(f"job {job.id} compares nothing")
        if job.ended is None:
            view.follow()
        else:  # everything is in the store, so one look reads it all
            await view.close()
            await view.index.look()
        after, generation = whole_number(request, "after"), request.query_params.get("generation")
        rows, following = view.index.since(after, generation)
        return {
            "key": key,
            "generation": view.index.generation,
            "next": following,
            "ended": job.ended is not None,
            "problem": view.index.problem or None,
            "tasks": [_brief(task) for task in view.run.tasks] if after == 0 else None,
            "texts": view.run.texts if after == 0 else None,
            "rollouts": [found for row in rows if (found := _trial_row(row)) is not None],
        }

    def _allowed(self) -> Jobs:
        if self._jobs is None:
            raise RunError("this console starts no commands: it has no --allow-actions")
        return self._jobs

    def _found(self, key: str) -> PromptEdits | None:
        """Return the components that the newest job has found for a run."""
        if self._jobs is None:
            return None
        found = [job for job in self._jobs.listing() if job.kind == FIND and job.subject["run"] == key]
        newest = next((job for job in found if job.state == "finished"), None)
        return None if newest is None else read_prompts(self._jobs.folder_of(newest.id) / PROMPTS)


def trial_key(job_id: str) -> str:
    """Return the key under which the console shows the rollouts of a trial; no run has a colon in its name."""
    return f"trial:{job_id}"


def _source(run: Run) -> TrialSource:
    if run.path is None:
        raise RunError("the run's folder is not on this machine, and a store does not have its agent")
    return TrialSource(run.path)


def _trial_row(row: Row) -> TrialRow | None:
    """Return a row of the index as one of the trial, whose ids are `try-TRIAL-VARIANT-ROW-REPEAT`."""
    parts = row.id.split("-")
    if len(parts) != 5 or not (parts[3].isdecimal() and parts[4].isdecimal()):
        return None
    return TrialRow(
        id=row.id,
        variant=parts[2],
        row=int(parts[3]),
        repeat=int(parts[4]),
        status=row.status,
        reward=row.reward,
        calls=row.calls,
        seconds=row.seconds,
        error=row.error,
    )


def _brief(task: Any) -> Any:
    """Return a task as it is if it is short, and otherwise the beginning of its text."""
    shown = plain(task)
    text = msgspec.json.encode(shown).decode()
    return shown if len(text) <= INPUT_CHARACTERS else text[:INPUT_CHARACTERS]
