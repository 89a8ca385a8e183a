"""HTTP API of a server of runs. Every request but `GET /healthz` needs the server's token, as a bearer token.

Statuses: 400 the request cannot work · 401 wrong token · 404 no such run · 409 not in the run's present state ·
413 too large.
"""

import asyncio
import hmac
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from leyden.core.errors import LeydenError, RunError, UsageError
from leyden.core.gateway.http.asgi import ClientGone
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.refusal import Refusal
from leyden.core.masking import mask_text
from leyden.core.server.budget import DEFAULT, Budget
from leyden.core.server.messages import (
    MOST_WAIT,
    AttachAddress,
    Failure,
    News,
    Resumption,
    Submission,
    VersionNotice,
)
from leyden.core.server.supervisor import NoSuchRun, Supervisor
from leyden.core.trainer.config import load_config
from leyden.core.trainer.launch import ResumeChanges
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile, prompt_texts

T = TypeVar("T")
BODY = BodyLimits(max_bytes=256 << 20, max_decoded_bytes=256 << 20, seconds=600.0)
"""Limits of a submission, most of which are the rows of its tasks."""
POLL_SECONDS = 0.25
MOST_OUTPUT = 256 << 10
"""Bytes of output in one answer."""
_JSON = "application/json"


def server_app(supervisor: Supervisor, token: str) -> Starlette:
    """Return the ASGI application of a server whose requests need `token`."""
    api = _Api(supervisor)

    def guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), token.encode()):
                return _failed(401, "this server needs its token, which is in its LEYDEN_SERVER_TOKEN or token file")
            try:
                return await answer(request)
            except (LeydenError, msgspec.MsgspecError, OSError, ClientDisconnect, ClientGone) as error:
                return _refusal(error)

        return checked

    async def health(request: Request) -> Response:
        return _json({"server": "leyden serve"})

    routes = [
        ("/runs", api.runs, "GET"),
        ("/runs", api.submit, "POST"),
        ("/runs/{name}", api.show, "GET"),
        ("/runs/{name}", api.remove, "DELETE"),
        ("/runs/{name}/news", api.news, "GET"),
        ("/runs/{name}/metrics", api.metrics, "GET"),
        ("/runs/{name}/address", api.address, "GET"),
        ("/runs/{name}/stop", api.stop, "POST"),
        ("/runs/{name}/resume", api.resume, "POST"),
        ("/runs/{name}/rollback", api.roll_back, "POST"),
    ]
    return Starlette(
        routes=[
            Route("/healthz", health),
            *(Route(path, guarded(answer), methods=[method]) for path, answer, method in routes),
        ]
    )


class _Api:
    """The requests that need the token."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def runs(self, request: Request) -> Response:
        """Answer with the status of every run, and the server's budget."""
        memory, cores = self._supervisor.left
        total = self._supervisor.total
        budget = {"memory": total.memory, "memory_left": memory, "cores": total.cores, "cores_left": cores}
        return _json({"runs": self._supervisor.statuses(), "budget": budget})

    async def submit(self, request: Request) -> Response:
        """Add a run to the queue."""
        body = await read_body(request.scope, request.receive, BODY)
        given = await asyncio.to_thread(msgspec.json.decode, body, type=Submission)
        most = min(DEFAULT.memory, self._supervisor.total.memory)
        budget = Budget(memory=given.memory or most, cores=given.cores or DEFAULT.cores)
        return _json(await self._supervisor.submit(given.config, given.tasks, given.held_out, budget), 201)

    async def show(self, request: Request) -> Response:
        """Answer with the status of a run."""
        return _json(self._supervisor.status(_name(request)))

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of every step of a run."""
        return _json(await asyncio.to_thread(self._folder(_name(request)).metrics))

    async def stop(self, request: Request) -> Response:
        """Request that a run stops."""
        return _json(self._supervisor.stop_run(_name(request)))

    async def resume(self, request: Request) -> Response:
        """Put a run into the queue again."""
        given = await _read(request, Resumption)
        name = _name(request)
        known = self._supervisor.record(name).budget
        budget = Budget(memory=given.memory or known.memory, cores=given.cores or known.cores)
        changes = ResumeChanges(steps=given.steps, device=given.device, settings=given.settings)
        return _json(await self._supervisor.resume(name, changes, budget))

    async def roll_back(self, request: Request) -> Response:
        """Return a run to an earlier version."""
        given = await _read(request, dict[str, int | str])
        if "version" not in given:
            raise UsageError('name the version to return to, as {"version": 3}')
        return _json(await self._supervisor.roll_back(_name(request), str(given["version"])))

    async def remove(self, request: Request) -> Response:
        """Delete a run that has ended."""
        await self._supervisor.remove(_name(request))
        return Response(status_code=204)

    async def address(self, request: Request) -> Response:
        """Answer with the address and the token at which agents attach to a run."""
        name = _name(request)
        record, status = self._supervisor.record(name), self._supervisor.status(name)
        placement = load_config(self._folder(name).config_file).runners
        host = f"[{placement.host}]" if ":" in placement.host else placement.host
        url = placement.url(f"http://{host}:{record.port}")
        return _json(AttachAddress(run=name, state=status.state, url=url, token=record.token))

    async def news(self, request: Request) -> Response:
        """Answer as soon as something is new of a run, or after `wait` seconds.

        New is output after `offset`, a step after `step`, a version after `version`, or another state than `state`.
        """
        name, query = _name(request), request.query_params
        offset, step, version = (_number(query.get(key)) for key in ("offset", "step", "version"))
        give_up = time.monotonic() + _seconds(query.get("wait"))

        def is_late() -> bool:
            return time.monotonic() >= give_up or self._supervisor.is_closing

        seen, known = None, query.get("state")
        while True:
            marks = self._marks(name)
            if marks != seen or self._supervisor.state(name) != known or is_late():
                found = await asyncio.to_thread(self._news, name, offset, step, version)
                if found.output or found.metrics or found.versions or found.status.state != known or is_late():
                    return _json(found)
                seen = marks
            await asyncio.sleep(POLL_SECONDS)

    def _marks(self, name: str) -> list[tuple[int, int]]:
        """Return sizes and times of the files that hold what is new, to read them only if they have changed."""
        folder = self._folder(name)
        files = (folder.metrics_file, VersionFile(folder.path).path, self._supervisor.output(name))
        return [(found.st_size, found.st_mtime_ns) if (found := _stat(path)) else (0, 0) for path in files]

    def _news(self, name: str, offset: int | None, step: int | None, version: int | None) -> News:
        folder = self._folder(name)
        output, after = "", 0
        if offset is not None:
            output, after = _output(self._supervisor.output(name), offset)
        metrics = [] if step is None else [line for line in folder.metrics() if int(line.get("step", 0)) > step]
        versions: list[VersionNotice] = []
        if version is not None:
            known = VersionFile(folder.path).read()
            versions = [_notice(folder, one) for one in known.values() if one.version > version]
        status = self._supervisor.status(name)
        return News(status=status, output=output, offset=after, metrics=metrics, versions=versions)

    def _folder(self, name: str) -> RunFolder:
        self._supervisor.record(name)
        return RunFolder(self._supervisor.runs / name)


def _notice(folder: RunFolder, version: ModelVersion) -> VersionNotice:
    return VersionNotice(
        version=version.version,
        created=version.created,
        prompts=prompt_texts(version),
        metrics=version.metrics,
        held_out={name: found.success for name, found in version.held_out.items()},
        weights=None if version.weights is None else str(folder.path / version.weights),
    )


def _output(path: Path, offset: int) -> tuple[str, int]:
    """Return the whole lines of a file after `offset`, at most its end, and the place after them."""
    try:
        with path.open("rb") as file:
            offset = file.seek(min(offset, file.seek(0, os.SEEK_END)))
            piece = file.read(MOST_OUTPUT)
    except FileNotFoundError:
        return "", 0
    whole = piece[: piece.rfind(b"\n") + 1] if len(piece) < MOST_OUTPUT or b"\n" in piece else piece
    return mask_text(whole.decode("utf-8", "replace")), offset + len(whole)


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None


def _name(request: Request) -> str:
    return request.path_params["name"]


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.removeprefix("-").isdecimal() or len(text) > 18:
        raise UsageError(f"not a whole number: {text[:40]!r}")
    return int(text)


def _seconds(text: str | None) -> float:
    """Return a time that a request may be held; 0 for one that is no number, as NaN."""
    try:
        return min(max(0.0, float(text or 0)), MOST_WAIT)
    except ValueError:
        raise UsageError(f"not a number of seconds: {str(text)[:40]!r}") from None


async def _read(request: Request, kind: type[T]) -> T:
    body = await read_body(request.scope, request.receive, BODY)
    return msgspec.json.decode(body or b"{}", type=kind)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=_JSON)


def _refusal(error: Exception) -> Response:
    """Return the response to a request that `error` ended."""
    match error:
        case Refusal():
            return _failed(error.status, str(error))
        case NoSuchRun():
            return _failed(404, str(error))
        case RunError():
            return _failed(409, str(error))
        case UsageError():
            return _failed(400, str(error))
        case LeydenError() | OSError():
            return _failed(500, str(error), usage=False)
        case msgspec.MsgspecError():
            return _failed(400, f"the request cannot be read: {error}")
        case _:
            return _failed(400, "the client has disconnected")


def _failed(status: int, error: str, *, usage: bool = True) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    body = msgspec.json.encode(Failure(error=" ".join(mask_text(error).split()), usage=usage))
    return Response(body, status, headers, media_type=_JSON)
