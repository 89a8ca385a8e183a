"""Requests about jobs: their list, their state, the stream of it, and stopping them."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from leyden.console.actions.jobs import POLL_SECONDS, Job, Jobs
from leyden.console.http.answers import as_json, error_answer
from leyden.console.http.events import Pace, event_stream
from leyden.core.errors import RunError


class JobRequests:
    """The requests about the jobs of one console."""

    def __init__(self, jobs: Jobs, is_stopping: Callable[[], bool]) -> None:
        self._jobs, self._is_stopping = jobs, is_stopping

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/api/jobs", as_json(self._listing)),
            Route("/api/jobs/{job}", as_json(self._job)),
            Route("/api/jobs/{job}/events", self._events),
            Route("/api/jobs/{job}/stop", as_json(self._stop), methods=["POST"]),
        ]

    async def _listing(self, request: Request) -> list[Job]:
        del request
        return self._jobs.listing()

    async def _job(self, request: Request) -> Job:
        return self._jobs.job(request.path_params["job"])

    async def _stop(self, request: Request) -> Job:
        return self._jobs.stop(request.path_params["job"])

    async def _events(self, request: Request) -> Response:
        try:
            job = self._jobs.job(request.path_params["job"])
        except RunError as error:
            return error_answer(404, error)

        async def read() -> Any:
            return msgspec.structs.replace(job, result=None)  # a page requests the result when the job has ended

        return event_stream(
            request, read, self._is_stopping, pace=Pace(POLL_SECONDS), is_last=lambda sent: sent.ended is not None
        )
