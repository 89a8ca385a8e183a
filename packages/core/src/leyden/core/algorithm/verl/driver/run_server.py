"""`RolloutServer`: the ASGI application from which VERL's processes request rollouts of the run.

A request that is repeated, because its response was late or got lost, is answered with the same rollouts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leyden.core.algorithm.external_loop import ExternalLoopContext, TaskRequest
from leyden.core.algorithm.verl.wire import (
    FAILED,
    LONGEST_WAIT,
    MESSAGE,
    PAUSE,
    REPLICAS,
    ROLLOUTS,
    TAKEN,
    USED,
    decode_failed,
    decode_message,
    decode_pause,
    decode_replicas,
    decode_request,
    decode_taken,
    decode_used,
    encode_group,
)
from leyden.core.errors import LeydenError, NothingToLearn, TrainingError

log = logging.getLogger(__name__)

ENDED = "the run has ended"
NOT_YET = 202
"""Response status that means: the result is not ready, repeat the request."""
Handler = Callable[[Request], Awaitable[Response]]


class RolloutServer:
    """Serves rollouts of `context`; each request is answered within `timeout` seconds."""

    def __init__(self, context: ExternalLoopContext, timeout: float = LONGEST_WAIT) -> None:
        self._context, self._timeout = context, timeout
        self._tasks: dict[TaskRequest, asyncio.Task[bytes]] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception of the first rollouts that cannot be run, served or given to VERL; never a result."""
        routes = {
            REPLICAS: self._replicas,
            PAUSE: self._pause,
            ROLLOUTS: self._rollouts,
            USED: self._used,
            TAKEN: self._taken,
            FAILED: self._failed,
            MESSAGE: self._message,
        }
        self.app = Starlette(
            routes=[Route(path, _checked(handler), methods=["POST"]) for path, handler in routes.items()]
        )

    async def close(self) -> None:
        """Cancel all running rollout requests."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        self.failure.cancel()

    async def _replicas(self, request: Request) -> Response:
        replicas = decode_replicas(await request.body())
        try:
            await self._context.serve_from(replicas.addresses, replicas.version)
        except LeydenError as error:
            self._fail(error)
            return Response(ENDED, status_code=503)
        return Response()

    async def _pause(self, request: Request) -> Response:
        await self._context.pause(decode_pause(await request.body()).version)
        return Response()

    async def _rollouts(self, request: Request) -> Response:
        task_request = decode_request(await request.body())
        task = self._tasks.get(task_request) or self._begin(task_request)
        done, _ = await asyncio.wait([task], timeout=self._timeout)
        if not done:
            return Response(status_code=NOT_YET)
        if task.cancelled() or task.exception() is not None:
            return Response(ENDED, status_code=503)
        return Response(task.result(), media_type="application/msgpack")

    async def _used(self, request: Request) -> Response:
        self._context.used(decode_used(await request.body()))
        return Response()

    async def _taken(self, request: Request) -> Response:
        await self._context.taken(decode_taken(await request.body()))
        return Response()

    async def _failed(self, request: Request) -> Response:
        failed = decode_failed(await request.body())
        self._fail(NothingToLearn(failed.why) if failed.to_mend else TrainingError(failed.why))
        return Response()

    async def _message(self, request: Request) -> Response:
        log.warning("%s", decode_message(await request.body()).what)
        return Response()

    def _begin(self, task_request: TaskRequest) -> "asyncio.Task[bytes]":
        """Start the requested rollouts, and remove finished requests of earlier steps."""
        for old in [other for other, task in self._tasks.items() if other.step < task_request.step and task.done()]:
            del self._tasks[old]
        task = self._tasks[task_request] = asyncio.create_task(self._run(task_request))
        task.add_done_callback(self._ended)
        return task

    async def _run(self, task_request: TaskRequest) -> bytes:
        return encode_group(await self._context.rollouts(task_request))

    def _ended(self, task: "asyncio.Task[bytes]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)


def _checked(handler: Handler) -> Handler:
    """Return a handler that answers 400 to a request body that cannot be decoded."""

    async def checked(request: Request) -> Response:
        try:
            return await handler(request)
        except msgspec.DecodeError as error:
            return Response(f"not understood: {error}", status_code=400)

    return checked
