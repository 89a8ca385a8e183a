"""Actions on runs: launch, resume, stop, roll back, promote and export, each a command of `leyden`."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import yaml
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from leyden.console.actions.jobs import Job, Jobs
from leyden.console.actions.run_file_error import line_of
from leyden.console.http.answers import InputError, as_json, body_of
from leyden.console.runs.run import Run
from leyden.core.errors import RunError
from leyden.core.masking import MASK
from leyden.core.trainer.config import NAME, RunConfig

RUN_FILE = "run.yaml"
OF_FORM = ("name", "check")
"""Settings that the form has fields for."""


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new run: its run file, and what the form has fields for."""

    text: str
    """Settings in YAML, as in a run's `config.yaml`."""
    name: str
    check: bool = True
    """Whether the run is checked on its first batch."""


class OnVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version of a run."""

    version: int


class Export(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version of a run, and where it is written to."""

    version: int
    folder: str


class RunActions:
    """The requests that start, stop and change runs."""

    def __init__(self, jobs: Jobs, find_run: Callable[[str], Awaitable[Run]]) -> None:
        self._jobs, self._find_run = jobs, find_run

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        run = "/api/runs/{key}"
        return [
            Route(f"{run}/launch", as_json(self._prepared)),
            Route(f"{run}/launch", as_json(self._launch), methods=["POST"]),
            Route(f"{run}/resume", as_json(self._resume), methods=["POST"]),
            Route(f"{run}/stop", as_json(self._stop), methods=["POST"]),
            Route(f"{run}/rollback", as_json(self._roll_back), methods=["POST"]),
            Route(f"{run}/promote", as_json(self._promote), methods=["POST"]),
            Route(f"{run}/export", as_json(self._export), methods=["POST"]),
        ]

    async def _prepared(self, request: Request) -> dict[str, object]:
        """Return the run file with which a run like this one is started."""
        run, folder = await self._of(request)
        config = await run.config()
        settings = {
            name: value for name, value in config.items() if name not in OF_FORM and not _is_default(name, value)
        }
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)
        return {
            "name": _free_name(folder),
            "text": text,
            "check": config.get("check", True),
            "has_secrets": MASK in text,
            "runs": str(folder.parent),
        }

    async def _launch(self, request: Request) -> Job:
        _, folder = await self._of(request)
        given = await body_of(request, Launch)
        if not NAME.fullmatch(given.name):
            raise ValueError(f"the name {given.name!r} may have letters, digits, '.', '_' and '-'")
        if (folder.parent / given.name).exists():
            raise ValueError(f"there is a run {given.name!r} already")
        job_folder = self._jobs.new_folder()
        file = job_folder / RUN_FILE
        file.write_text(given.text, encoding="utf-8")
        arguments = ["train", "--config", str(file), "--name", given.name, "--runs", str(folder.parent)]
        refusal = await self._jobs.refusal([*arguments, "--validate", "--quiet"])
        if refusal is not None:
            message = refusal.replace(f'"{file}"', "the run file").replace(str(file), "the run file")
            message = message.replace(' in "<unicode string>",', " at")
            raise InputError(message, line_of(given.text, message))
        return self._jobs.start(
            "train",
            f"train {given.name}",
            [*arguments, "--json", "--check" if given.check else "--no-check"],
            folder=job_folder,
            subject={"run": given.name},
            detached=True,
        )

    async def _resume(self, request: Request) -> Job:
        _, folder = await self._of(request)
        arguments = ["train", "--resume", folder.name, "--runs", str(folder.parent), "--json"]
        title = f"continue {folder.name}"
        return self._jobs.start("train", title, arguments, subject=_subject(request), detached=True)

    async def _stop(self, request: Request) -> Job:
        return await self._start(request, "stop", ["stop"])

    async def _roll_back(self, request: Request) -> Job:
        version = (await body_of(request, OnVersion)).version
        return await self._start(request, "rollback", ["models", "rollback"], [str(version)])

    async def _promote(self, request: Request) -> Job:
        version = (await body_of(request, OnVersion)).version
        return await self._start(request, "promote", ["models", "promote"], [str(version)])

    async def _export(self, request: Request) -> Job:
        given = await body_of(request, Export)
        if not given.folder.strip() or given.folder.startswith("-"):
            raise ValueError("name the folder that the version is written to")
        return await self._start(request, "export", ["models", "export"], [str(given.version), given.folder])

    async def _start(self, request: Request, kind: str, command: list[str], more: list[str] | None = None) -> Job:
        """Start a command about a run: `leyden COMMAND RUN MORE --runs FOLDER`."""
        _, folder = await self._of(request)
        title = " ".join([kind, folder.name, *(more or [])])
        arguments = [*command, folder.name, *(more or []), "--runs", str(folder.parent)]
        return self._jobs.start(kind, title, arguments, subject=_subject(request))

    async def _of(self, request: Request) -> tuple[Run, Path]:
        run = await self._find_run(request.path_params["key"])
        if run.path is None:
            raise RunError("the folder of this run is not on this machine, so no command can change it from here")
        return run, run.path


def _subject(request: Request) -> dict[str, str]:
    return {"run": request.path_params["key"]}


def _is_default(name: str, value: object) -> bool:
    """Whether a run has this value of a setting without a word in its run file."""
    field = next((one for one in msgspec.structs.fields(RunConfig) if one.name == name), None)
    if field is None or field.required:
        return False
    default = field.default_factory() if callable(field.default_factory) else field.default
    return msgspec.json.decode(msgspec.json.encode(default)) == value  # tuples are lists in YAML


def _free_name(folder: Path) -> str:
    """Return the name of a next run like the one in `folder`."""
    stem = folder.name
    return next(name for number in range(2, 10_000) if not (folder.parent / (name := f"{stem}-{number}")).exists())
