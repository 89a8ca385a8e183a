"""The console's server: JSON and events over HTTP, and the pages that show them."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.console.actions.chat import Chat
from leyden.console.actions.jobs import Jobs
from leyden.console.actions.rescoring import RewardRequests
from leyden.console.actions.routes import JobRequests
from leyden.console.actions.run_actions import RunActions
from leyden.console.actions.trials import Trials
from leyden.console.actions.tuning import TuningRequests
from leyden.console.compare import MOST, comparison, evaluated
from leyden.console.http.access import guarded
from leyden.console.http.answers import as_json, as_whole_number, error_answer, whole_number
from leyden.console.http.events import Pace, event_stream
from leyden.console.run_view import RunView, RunViews
from leyden.console.runs.catalogue import Catalogue
from leyden.console.studies import Studies
from leyden.console.suggestions import Suggestions
from leyden.core.errors import RunError

if TYPE_CHECKING:
    from leyden.console.mcp.endpoint import McpEndpoint

STATIC = Path(__file__).parent / "static"


class Console:
    """The runs of a catalogue as an ASGI application; with `jobs`, also the actions; with `mcp`, also for MCP clients.

    Raises ModuleNotFoundError for `mcp` without its package.
    """

    def __init__(self, catalogue: Catalogue, jobs: Jobs | None = None, *, mcp: bool = False) -> None:
        self.catalogue, self.jobs = catalogue, jobs
        self.views = RunViews(catalogue)
        self._mcp = _mcp_endpoint(self.views) if mcp else None
        self.is_stopping: Callable[[], bool] = lambda: False
        """Whether the server is about to stop, so that streams of events must end."""
        self._pace = Pace()
        self.studies = Studies(catalogue, lambda: self.is_stopping())
        self.suggestions = Suggestions(catalogue)

    def application(self) -> Starlette:
        """Return the application, without the checks of `access`."""
        run = "/api/runs/{key}"
        routes: list[BaseRoute] = [
            Route("/api/console", as_json(self._about)),
            Route("/api/runs", as_json(self._runs)),
            Route(run, as_json(self._run)),
            Route(f"{run}/steps", as_json(self._steps)),
            Route(f"{run}/step/{{number}}", as_json(self._step)),
            Route(f"{run}/events", self._events),
            Route(f"{run}/rollouts", as_json(self._rollouts)),
            Route(f"{run}/why", as_json(self._why)),
            Route(f"{run}/health", as_json(self._health)),
            Route(f"{run}/bottlenecks", as_json(self._bottlenecks)),
            Route(f"{run}/prompts", as_json(self._prompts)),
            Route(f"{run}/rollouts/{{rollout:path}}/calls/{{span}}", as_json(self._call)),
            Route(f"{run}/rollouts/{{rollout:path}}", as_json(self._rollout)),
            Route("/api/compare", as_json(self._compare)),
            Route("/api/compare/tasks", as_json(self._compare_tasks)),
            *RewardRequests(self.catalogue.run, self.jobs).routes(),
            *self.studies.routes(),
            *self.suggestions.routes(),
            *self._actions(),
            *([] if self._mcp is None else [self._mcp.route()]),
            Route("/api/{rest:path}", as_json(_unknown)),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    def _actions(self) -> list[BaseRoute]:
        trials = Trials(self.jobs, self.catalogue, self.views.view).routes()
        if self.jobs is None:
            return [*trials, Route("/api/jobs/{rest:path}", as_json(_no_jobs))]
        return [
            *trials,
            *JobRequests(self.jobs, lambda: self.is_stopping()).routes(),
            *RunActions(self.jobs, self.catalogue.run).routes(),
            *Chat(self.jobs, self.catalogue.run, lambda: self.is_stopping()).routes(),
            *TuningRequests(self.suggestions, self.jobs).routes(),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        del app
        try:
            async with nullcontext() if self._mcp is None else self._mcp.running():
                yield
        finally:
            if self.jobs is not None:
                await self.jobs.close()
            await self.views.close()
            await self.catalogue.close()

    # --- Requests

    async def _about(self, request: Request) -> Any:
        del request
        return {"version": _version(), "actions": self.jobs is not None, "sources": self.catalogue.sources}

    async def _runs(self, request: Request) -> Any:
        del request
        return await self.catalogue.listing()

    async def _run(self, request: Request) -> Any:
        view = await self._of(request)
        view.follow()
        return await view.detail()

    async def _steps(self, request: Request) -> Any:
        view = await self._of(request)
        return await view.steps(whole_number(request, "after"), request.query_params.get("generation"))

    async def _step(self, request: Request) -> Any:
        view = await self._of(request)
        return await view.step(as_whole_number("step", request.path_params["number"]))

    async def _rollouts(self, request: Request) -> Any:
        view = await self._of(request)
        return view.rollouts(whole_number(request, "after"), request.query_params.get("generation"))

    async def _why(self, request: Request) -> Any:
        return await (await self._of(request)).why()

    async def _health(self, request: Request) -> Any:
        return await (await self._of(request)).health()

    async def _bottlenecks(self, request: Request) -> Any:
        return await (await self._of(request)).bottlenecks()

    async def _prompts(self, request: Request) -> Any:
        return await (await self._of(request)).prompts()

    async def _rollout(self, request: Request) -> Any:
        return await (await self._of(request)).rollout(request.path_params["rollout"])

    async def _call(self, request: Request) -> Any:
        parts, attempt = request.path_params, request.query_params.get("attempt")
        return await (await self._of(request)).call(parts["rollout"], parts["span"], attempt)

    async def _compare(self, request: Request) -> Any:
        return await comparison(await self._several(request))

    async def _compare_tasks(self, request: Request) -> Any:
        views, name = await self._several(request), request.query_params.get("set", "")
        shown = [evaluated(await view.run.versions()) for view in views]
        rewards = [{} if own is None else own.rewards.get(name, {}) for own in shown]
        tasks = sorted({task for own in rewards for task in own}, key=lambda task: (len(task), task))
        for view in views:
            view.follow()
        inputs = await views[0].run.held_out_tasks(name)
        rollouts = [
            _held_out_rollouts(view, name, None if own is None else own.version)
            for view, own in zip(views, shown, strict=True)
        ]
        return {
            "tasks": [
                {
                    "task": int(task) if task.isdecimal() else task,
                    "input": inputs[int(task)] if task.isdecimal() and int(task) < len(inputs) else None,
                    "rewards": [own.get(task) for own in rewards],
                    "rollouts": [own.get(task) for own in rollouts],
                }
                for task in tasks
            ]
        }

    async def _events(self, request: Request) -> Response:
        try:
            view = await self._of(request)
        except RunError as error:
            return error_answer(404, error)
        view.follow()

        async def change() -> Any:
            view = await self._of(request)  # another one, if the run was replaced
            view.follow()
            return await view.change()

        return event_stream(request, change, self.is_stopping, pace=self._pace)

    async def _of(self, request: Request) -> RunView:
        return await self.views.view(request.path_params["key"])

    async def _several(self, request: Request) -> list[RunView]:
        keys = [key for key in request.query_params.get("runs", "").split(",") if key]
        if not 2 <= len(set(keys)) <= MOST:
            raise ValueError(f"give 2 to {MOST} different runs, as in runs=a,b; {len(set(keys))} were given")
        return [await self.views.view(key) for key in dict.fromkeys(keys)]


def _held_out_rollouts(view: RunView, name: str, version: int | None) -> dict[str, str]:
    """Return the id of a version's rollout of each task of a held-out set, as far as rollouts have been read.

    The id of a rollout with the agent's own sampling has `agent` in it, and `policy` with that of training.
    """
    return {
        str(row.task): row.id
        for row in view.index.rows.values()
        if row.set == name and row.version == version and "-agent-" in row.id
    }


async def _no_jobs(request: Request) -> Any:
    del request
    raise RunError("this console only reads, so it has no jobs: start it with --allow-actions")


async def _unknown(request: Request) -> Any:
    raise RunError(f"the console has no page {request.url.path}")


def _mcp_endpoint(views: RunViews) -> "McpEndpoint":
    from leyden.console.mcp.endpoint import McpEndpoint

    return McpEndpoint(views, _version())


def _version() -> str:
    try:
        return version("leyden-console")
    except PackageNotFoundError:  # a source checkout on PYTHONPATH
        return "(not installed)"


def application(
    folders: Sequence[Path],
    uris: Sequence[str] = (),
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    allow_actions: bool = False,
    mcp: bool = False,
) -> "Guarded":
    """Return the console of the runs in `folders` and `uris` as an ASGI application, with all checks.

    Raises ValueError for `allow_actions` or `mcp` without a token, and ModuleNotFoundError for `mcp` without its
    package.
    """
    console = Console(Catalogue(folders, uris), Jobs() if allow_actions else None, mcp=mcp)
    inner = console.application()
    return Guarded(console, guarded(inner, host, token, tuple(allowed_hosts), allow_actions=allow_actions, mcp=mcp))


class Guarded:
    """A console behind the checks of `access`."""

    def __init__(self, console: Console, app: ASGIApp) -> None:
        self.console, self._app = console, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request through the checks to the console."""
        await self._app(scope, receive, send)


async def serve(
    app: Guarded, host: str, port: int, ready: Callable[[int], None], *, until: Callable[[], bool] = lambda: False
) -> None:
    """Serve `app` until the process is stopped, or `until` returns True.

    Calls `ready` with the port as soon as it listens. Raises OSError if the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as listening:
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5, lifespan="on")
        server = uvicorn.Server(config)
        app.console.is_stopping = lambda: server.should_exit

        async def watch() -> None:
            while not until():
                await asyncio.sleep(1.0)
            server.should_exit = True

        ready(listening.getsockname()[1])
        watching = asyncio.create_task(watch())
        try:
            await server.serve(sockets=[listening])
        finally:
            watching.cancel()
