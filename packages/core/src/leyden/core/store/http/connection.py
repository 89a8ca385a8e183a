"""`Connection`: sends requests to a store's server, again where no answer came or the server was busy.

Does not encode or decode calls; see `client`.
"""

import asyncio
import io
import time
from collections.abc import AsyncGenerator
from uuid import uuid4
from weakref import WeakKeyDictionary

import aiohttp

from leyden.core.errors import StoreClosed, StoreError
from leyden.core.store.http.request_batching import LARGEST, RequestBatcher, ServerAnswer
from leyden.core.store.rpc import CAPABILITIES, MINIMAL, PREFER, REQUEST_ID, SMALL, writes

PATIENCE = 15.0
"""Seconds for which requests to an unreachable server are repeated, without the time the event loop was blocked."""
CONNECT_SECONDS = 10.0
"""Seconds after which connecting is given up."""
TICK_SECONDS = 0.25
"""Interval at which blocking of the event loop is measured; a shorter delay may not be measured."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_IDLE = 3.0
"""Seconds for which an unused connection is kept; servers commonly close theirs after five."""
_ANSWER_SECONDS = 90.0
"""Seconds without a byte after which an answer is given up; longer than any wait that the server allows."""

_BUSY = frozenset({429, 503})
_DEFAULT_RETRY_SECONDS = 1.0
"""Seconds until the next request to a busy server that sends no `Retry-After`."""

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Errors of a request of which no part can have reached a server."""
_DOUBT = "; it is unknown whether the data was stored"

_LARGE = 1 << 20
"""Bytes of a body that is sent in pieces."""

_Session = tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession]]


class LoopDelay:
    """Measures how long one event loop was blocked inside `with` blocks, which may overlap.

    A timer of asyncio fires after its time, even where the loop was blocked and has not read an answer in its socket.
    Such a timeout is no evidence about the server.
    """

    def __init__(self) -> None:
        self._measured = 0.0
        self._due = 0.0
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Seconds of delay measured so far."""
        return self._measured + self._late()

    def __enter__(self) -> None:
        self._open += 1
        if self._timer is None:
            self._tick_later()

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> float:
        return 0.0 if self._timer is None else max(time.monotonic() - self._due, 0.0)

    def _tick_later(self) -> None:
        self._due = time.monotonic() + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._measured += self._late()
        self._tick_later()


class Connection:
    """A server at `url`, called with a bearer token. Each event loop has a session of its own."""

    def __init__(self, url: str, token: str, patience: float) -> None:
        self.token = token
        self.url = url.rstrip("/")
        self._headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/msgpack",
            PREFER: MINIMAL,
        }
        self._patience = patience
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self._batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, RequestBatcher] = WeakKeyDictionary()
        self._delays: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopDelay] = WeakKeyDictionary()
        self._closed = False
        self.capabilities: frozenset[str] = frozenset()
        """Features in the server's last answer with the header `CAPABILITIES`."""

    async def close(self) -> None:
        """Close the session of this event loop; other sessions are closed with their event loops."""
        self._closed = True
        _, generator = self._sessions.pop(asyncio.get_running_loop(), (None, None))
        if generator is not None:
            await generator.aclose()

    async def call(self, method: str, body: bytes) -> ServerAnswer:
        """Send a call and return its answer. Raises StoreError when no answer comes in time."""
        if method not in SMALL or len(body) > LARGEST:
            return await self.post(method, body, uuid4().hex)
        loop = asyncio.get_running_loop()
        if loop not in self._batchers:
            self._batchers[loop] = RequestBatcher(self.post)
        return await self._batchers[loop].call(method, body)

    async def post(self, name: str, body: bytes, request_id: str) -> ServerAnswer:
        """Send a request, repeat it under the same id until an answer comes, and return the answer.

        Raises StoreError when none comes in time. The message mentions it where a call that writes may have taken
        effect.
        """
        headers = {**self._headers, REQUEST_ID: request_id}
        delay = self._delay()
        began, pause = time.monotonic() - delay.seconds, _FIRST_PAUSE
        doubt = ""

        def is_last(pause: float) -> bool:
            return time.monotonic() - delay.seconds + pause > began + self._patience

        with delay:
            while True:
                if self._closed:
                    raise StoreClosed()
                try:
                    status, answer, seconds = await self._post_once(name, body, headers)
                    if seconds is None or (is_last(seconds) and not doubt):
                        return ServerAnswer(status, answer, bool(doubt))
                    if is_last(seconds):
                        raise StoreError(f"the store at {self.url} still answers {status}{doubt}")
                except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                    if writes(name) and not isinstance(error, _NOT_SENT):
                        doubt = _DOUBT
                    if is_last(pause):
                        why = f"{error or type(error)}{doubt}"
                        raise StoreError(f"the store at {self.url} does not answer: {why}") from error
                    seconds = pause
                    pause = min(2 * pause, _LONGEST_PAUSE)
                await asyncio.sleep(seconds)

    def _delay(self) -> LoopDelay:
        loop = asyncio.get_running_loop()
        if loop not in self._delays:
            self._delays[loop] = LoopDelay()
        return self._delays[loop]

    async def _post_once(self, name: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, float | None]:
        """Return status and body, and for a busy server the seconds until the next request, otherwise None."""
        session = await self._session()
        # sent in pieces, so that other calls are sent in between
        data = body if len(body) < _LARGE else io.BytesIO(body)
        async with session.post(f"{self.url}/{name}", data=data, headers=headers, allow_redirects=False) as response:
            answer = await response.read()
            if CAPABILITIES in response.headers:
                self.capabilities = frozenset(response.headers[CAPABILITIES].split(","))
            busy = response.status in _BUSY
            return response.status, answer, _seconds(response.headers.get("retry-after")) if busy else None

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            for ended in [other for other in list(self._sessions) if other.is_closed()]:
                self._sessions.pop(ended, None)
            generator = _kept_session()
            self._sessions[loop] = (await anext(generator), generator)
        return self._sessions[loop][0]


def _seconds(retry_after: str | None) -> float:
    """Return a `Retry-After` header in seconds; a date, which proxies may send, counts as the default."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else _DEFAULT_RETRY_SECONDS


async def _kept_session() -> AsyncGenerator[aiohttp.ClientSession]:
    """Yield a session; an event loop that is shut down closes its generators, and so the session."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=_ANSWER_SECONDS),
        skip_auto_headers=("user-agent",),
    ) as session:
        yield session
