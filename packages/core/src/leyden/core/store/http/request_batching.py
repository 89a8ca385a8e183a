"""`RequestBatcher`: sends small calls that are made at the same time in one request.

A single call is sent at once. Calls made while a request is in progress wait for its answer, and are sent in the next
request. A request costs several times as much as a call in it, so many callers are served sooner than with a request
each.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import uuid4

import msgspec

from leyden.core.errors import StoreClosed, StoreError
from leyden.core.store.rpc import BATCH_PATH, BatchPart, BatchPartAnswer

MOST = 128
"""Largest number of calls in one request."""
LARGEST = 64 << 10
"""Bytes of the largest call that is sent with others; larger calls are sent alone."""


class ServerAnswer(NamedTuple):
    """Answer of a server."""

    status: int
    body: bytes
    was_sent_again: bool
    """Whether the request was repeated, so that it may have taken effect before."""


Post: TypeAlias = Callable[[str, bytes, str], Awaitable[ServerAnswer]]
"""Sends a request to a path, with its body and id; returns the answer, or raises StoreError."""

_ANSWERS = msgspec.msgpack.Decoder(list[BatchPartAnswer])


@dataclass(frozen=True, slots=True)
class _Waiting:
    part: BatchPart
    answer: "asyncio.Future[ServerAnswer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RequestBatcher:
    """Sends calls through `post`. Used on one event loop only."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._waiting: list[_Waiting] = []
        self._sender: asyncio.Task[None] | None = None

    async def call(self, method: str, body: bytes) -> ServerAnswer:
        """Send a call and return its answer; raises StoreError when none comes in time."""
        waiting = _Waiting(BatchPart(method, uuid4().hex, body))
        self._waiting.append(waiting)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send(), name="leyden calls")
        return await waiting.answer

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._send_batch([waiting for waiting in batch if not waiting.answer.cancelled()])
        finally:
            self._sender = None
            left, self._waiting = self._waiting, []
            _fail(left, StoreClosed)

    async def _send_batch(self, batch: Sequence[_Waiting]) -> None:
        try:
            answers = await self._answers([waiting.part for waiting in batch])
        except asyncio.CancelledError:
            _fail(batch, StoreClosed)
            raise
        except Exception as error:
            why = str(error) if isinstance(error, StoreError) else repr(error)
            _fail(batch, lambda: StoreError(why))
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)

    async def _answers(self, parts: Sequence[BatchPart]) -> list[ServerAnswer]:
        if not parts:
            return []
        if len(parts) == 1:
            return [await self._post(parts[0].method, parts[0].call, parts[0].id)]
        status, body, again = await self._post(BATCH_PATH, msgspec.msgpack.encode(parts), uuid4().hex)
        if status != 200:
            return [ServerAnswer(status, body, again) for _ in parts]
        try:
            answers = _ANSWERS.decode(body)
        except msgspec.MsgspecError as error:
            raise StoreError(f"the store's answer to several calls cannot be read: {error}") from error
        if len(answers) != len(parts):
            raise StoreError(f"the store answered {len(answers)} of {len(parts)} calls")
        return [ServerAnswer(answer.status, answer.body, again) for answer in answers]


def _fail(batch: Sequence[_Waiting], error: Callable[[], StoreError]) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error())
