"""`store_app`: a store over HTTP. `POST /{method}`, a MessagePack map of arguments in, a MessagePack value out.

`POST /together` takes several calls. 401 wrong token · 404 unknown method · 400 not a call of it · 413 too large · 422
the store's own error, which the client raises again. Knows nothing of who runs it: it is mounted into any ASGI server.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from leyden.core.store.base import LightningStore
from leyden.core.store.wire import (
    CAPABILITIES,
    ERRORS,
    LONGEST_WAIT,
    REQUEST_ID,
    TOGETHER,
    WAITING,
    Failure,
    Method,
    Part,
    PartAnswer,
    methods,
)

logger = logging.getLogger(__name__)

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one request."""
_REMEMBERED = 60.0
"""Seconds for which the answer to a call that writes is kept for a caller that lost it."""
_MSGPACK = "application/msgpack"
_PARTS = msgspec.msgpack.Decoder(list[Part])


@dataclass(slots=True)
class _Running:
    """A call, and how many requests wait for its answer."""

    task: asyncio.Task[PartAnswer]
    requests: int = 0


class _Refused(Exception):
    """The request is answered with a status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


def store_app(store: LightningStore, *, authorize: Callable[[str], bool]) -> Starlette:
    """Serve `store`; `authorize` is asked about the bearer token of every request."""
    endpoint = _Endpoint(store, authorize)
    return Starlette(routes=[Route("/{method}", endpoint.answer, methods=["POST"])])


class _Endpoint:
    def __init__(self, store: LightningStore, authorize: Callable[[str], bool]) -> None:
        self._store = store
        self._authorize = authorize
        self._running: dict[str, _Running] = {}

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        try:
            self._check(request)
            name = request.path_params["method"]
            if name == TOGETHER:
                answer = PartAnswer(200, msgspec.msgpack.encode(await self._parts(await _body(request))))
            else:
                method = _method(name)
                call = _decoded(method, await _body(request))
                answer = await self._answered(method, call, request.headers.get(REQUEST_ID), request)
        except _Refused as refused:
            headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
            return PlainTextResponse(str(refused), refused.status, headers)
        except ClientDisconnect:
            return PlainTextResponse("the caller has gone", 400)
        able = ",".join(name for name, has in self._store.capabilities.items() if has)
        return Response(answer.body, answer.status, {CAPABILITIES: able}, _MSGPACK)

    def _check(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._authorize(token):
            raise _Refused(401, "the store wants a valid bearer token")

    async def _parts(self, body: bytes) -> list[PartAnswer]:
        """Run several calls side by side."""
        try:
            parts = _PARTS.decode(body)
        except msgspec.MsgspecError as error:
            raise _Refused(400, f"not a list of calls: {error}") from error
        return await asyncio.gather(*(self._part(part) for part in parts))

    async def _part(self, part: Part) -> PartAnswer:
        try:
            method = _method(part.method)
            if method.name in WAITING:
                raise _Refused(400, f"{method.name} may wait, and is not called together with others")
            return await self._answered(method, _decoded(method, part.call), part.id)
        except _Refused as refused:
            return PartAnswer(refused.status, str(refused).encode())

    async def _answered(
        self, method: Method, call: dict[str, Any], name: str | None, request: Request | None = None
    ) -> PartAnswer:
        """Run the call, or join it when the same, by `name`, has come before; `request` has it alone."""
        name = name if method.writes else None
        running = self._running.get(name) if name else None
        if running is None:
            running = _Running(asyncio.create_task(self._performed(method, call)))
            if name:
                self._running[name] = running
                running.task.add_done_callback(lambda _: self._forget_later(name))
        running.requests += 1
        try:
            if request is not None and method.name in WAITING:
                await _finished_or_gone(running.task, request)
            else:
                await asyncio.wait({running.task})
        finally:
            running.requests -= 1
            if not running.task.done() and method.name in WAITING and not running.requests:
                running.task.cancel()
        if not running.task.done() or running.task.cancelled():
            raise ClientDisconnect
        return running.task.result()

    def _forget_later(self, name: str) -> None:
        asyncio.get_running_loop().call_later(_REMEMBERED, self._running.pop, name, None)

    async def _performed(self, method: Method, call: dict[str, Any]) -> PartAnswer:
        try:
            return PartAnswer(200, msgspec.msgpack.encode(await getattr(self._store, method.name)(**call)))
        except tuple(ERRORS.values()) as error:
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS)
            return PartAnswer(422, msgspec.msgpack.encode(Failure(kind, str(error))))
        except Exception:
            logger.exception("the store failed in %s", method.name)
            return PartAnswer(500, b"the store failed; its log says why")


def _method(name: str) -> Method:
    if name not in methods():
        raise _Refused(404, f"the store has no method {name[:64]!r}")
    return methods()[name]


def _decoded(method: Method, body: bytes) -> dict[str, Any]:
    try:
        call = method.decode_call(body)
    except ValueError as error:
        raise _Refused(400, f"not a call of {method.name}: {error}") from error
    if method.name in WAITING:
        wanted = call["timeout"]
        call["timeout"] = LONGEST_WAIT if wanted is None else min(wanted, LONGEST_WAIT)
    return call


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise _Refused(413, f"a request to the store may have {MAX_BODY} bytes; send fewer spans at once")
    return bytes(body)


async def _finished_or_gone(task: asyncio.Task[PartAnswer], request: Request) -> None:
    """Return when the call has an answer, or nobody is there any more to read it."""
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
