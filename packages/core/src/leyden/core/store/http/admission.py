"""`Intake`: how much a store's server takes in at once, of all and of each sender. Knows nothing of what they send.

Invariants: whatever clients send, and however it is compressed, the requests that are being worked on hold no more than
`max_held` bytes and one request of trainers, `max_held_by_agents` and one request of agents, and of each agent its own
share; so an agent takes no room from trainers, and no more than its share from other agents. Who comes when there is
no room is told to come again.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from leyden.core.data.encoding.decompression import DEFLATE, GZIP, Corrupt, Inflater, TooMuch
from leyden.core.store.http.body_counting import json_values, msgpack_values
from leyden.core.store.http.long_work import LARGE, Sender, Turns
from leyden.core.store.http.refused import Refused, come_again

T = TypeVar("T")

SCALE_AT = 5_000
ENCODINGS = {"gzip": GZIP, "x-gzip": GZIP, "deflate": DEFLATE}
"""Content encodings that a body may have, and how zlib calls them."""
SMALL_PIECE = 256
"""Bytes that stand for a quarter of a megabyte at most, and are decompressed at once; more are on a thread."""
_KEPT = 1024
"""Accounts without a request that may be kept before they are looked through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """What the requests of one agent's token may take up, so that others are served beside it."""

    max_held: int = 64 << 20
    """Bytes of all its requests, though one always fits."""
    max_requests: int = 32
    """Requests that are read or worked on at once; further ones wait."""
    wait_seconds: float = 5.0
    """For so long."""
    max_parts: int = 256
    """Calls that travel together."""
    max_spans: int = 4_096
    """Spans of one call, or of one OTLP request."""
    max_values: int = 500_000
    """Values of one request, keys and containers included: twice as many as a span may have and be kept whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a store's server takes in. The defaults fit a machine with a few gigabytes."""

    max_body: int = 64 << 20
    """Bytes of one request, as sent, and as read where it was compressed."""
    max_json: int = 16 << 20
    """Bytes of one OTLP request in JSON, which takes many times more to read than protobuf."""
    max_span: int = 16 << 20
    """Bytes of one span that comes by OTLP."""
    max_parts: int = 1024
    """Calls that travel together."""
    max_spans: int = 20_000
    """Spans of one OTLP request."""
    max_values: int = 2_000_000
    """Values of one OTLP request: fields of protobuf; keys, values and containers in JSON."""
    max_held: int = 256 << 20
    """Bytes of all requests of trainers that are being read or worked on, though one always fits."""
    max_held_by_agents: int = 128 << 20
    """The same of all agents' requests."""
    max_waiting_spans: int = 20_000
    """Spans that wait to be written before further ones have to come again."""
    scale_at: int = SCALE_AT
    """Waiting spans from which on `/metrics` asks for more servers."""
    retry_seconds: int = 1
    """When to come again."""
    body_seconds: float = 120.0
    """For the whole body of a request."""
    gap_seconds: float = 30.0
    """Between two pieces of it."""
    min_rate: int = 1 << 10
    """Bytes a second of a body on average, once it has taken `gap_seconds`."""
    agent: AgentLimits = field(default_factory=AgentLimits)


class _Room:
    """Bytes that may be held."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def fits(self, size: int, own: int) -> bool:
        """Whether there is room for `size` more bytes of a request that holds `own`; one always fits."""
        return self.held + size <= self._most or self.held == own


class _Account:
    """What the requests of one sender take up."""

    def __init__(self, sender: Sender, rooms: tuple[_Room, ...], owner: Hashable = None, at_once: int = 0) -> None:
        self.sender, self.rooms, self.owner = sender, rooms, owner
        self.requests = 0
        """Those that wait included."""
        self.places = asyncio.Semaphore(at_once)
        self.small, self.large = asyncio.Lock(), asyncio.Lock()


class Intake:
    """Counts what is being worked on. Belongs to one event loop."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.turns = Turns()
        self.spans = 0
        """Spans that wait to be written."""
        self._trainers, self._agents = _Room(limits.max_held), _Room(limits.max_held_by_agents)
        self._trainer = _Account(self.turns.sender(agent=False), (self._trainers,))
        self._accounts: dict[Hashable, _Account] = {}

    @property
    def held(self) -> int:
        """Bytes of requests that are being read or worked on."""
        return self._trainers.held + self._agents.held

    def check_room(self) -> None:
        """Raise Refused, with status 429, while too many spans wait."""
        if self.spans >= self.limits.max_waiting_spans:
            raise come_again(f"{self.spans} spans wait to be written; send these again", self.limits.retry_seconds)

    @contextmanager
    def writing(self, spans: int) -> Generator[None]:
        """Count spans as waiting inside the block."""
        self.spans += spans
        try:
            yield
        finally:
            self.spans -= spans

    @asynccontextmanager
    async def place(self, owner: Hashable | None) -> "AsyncGenerator[Place]":
        """Count a request of the agent `owner`, None for a trainer, inside the block.

        Of an agent's requests those wait that are more than it may make at once: to refuse them would only bring the
        next. Raises Refused, with status 429, where that takes too long.
        """
        account = self._trainer if owner is None else self._account(owner)
        self.turns.note(account.sender)
        account.requests += 1
        try:
            async with self._among(account):
                yield Place(self, account)
        finally:
            account.requests -= 1
            if not self._is_used(account):
                self._accounts.pop(owner, None)

    @asynccontextmanager
    async def _among(self, account: _Account) -> AsyncGenerator[None]:
        """Wait until the request is one of those that its sender may make at once."""
        if account.owner is None:
            yield
            return
        limits = self.limits.agent
        try:
            async with asyncio.timeout(limits.wait_seconds):
                await account.places.acquire()
        except TimeoutError:
            line = f"an agent may make {limits.max_requests} requests at once; send this again"
            raise come_again(line, self.limits.retry_seconds) from None
        try:
            yield
        finally:
            account.places.release()

    def _account(self, owner: Hashable) -> _Account:
        account = self._accounts.get(owner)
        if account is None:
            if len(self._accounts) >= _KEPT:
                self._accounts = {key: known for key, known in self._accounts.items() if self._is_used(known)}
            rooms = self._agents, _Room(self.limits.agent.max_held)
            account = _Account(self.turns.sender(agent=True), rooms, owner, self.limits.agent.max_requests)
            self._accounts[owner] = account
        return account

    def _is_used(self, account: _Account) -> bool:
        return account.requests > 0 or account.sender.owes(self.turns.clock())


class Place:
    """One request, and what it takes up."""

    def __init__(self, intake: Intake, account: _Account) -> None:
        self._intake, self._account = intake, account
        self._limits = intake.limits

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncGenerator[bytes]:
        """Read the request's body, decompressed, and hold it inside the block.

        Raises Refused with status 400 (not what its headers say), 408 (too slow), 413 (too large), 415 (compressed in
        another way) or 429 (no room).
        """
        inflate = _inflate(request.headers.get("content-encoding"), self._limits.max_body)
        if int(request.headers.get("content-length", 0)) > self._limits.max_body:
            raise too_large(self._limits.max_body)
        took = [0]
        try:
            yield await self._read(request, inflate, took)
        finally:
            for room in self._account.rooms:
                room.held -= took[0]

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncGenerator[None]:
        """Hold inside the block what working on a request of `size` bytes takes.

        Of an agent's requests one large one is worked on at a time, and one small one while others send.
        """
        account, turns = self._account, self._intake.turns
        if account.owner is None or (size <= LARGE and not turns.others_send(account.sender)):
            yield
        else:
            async with account.small if size <= LARGE else account.large:
                yield

    async def do(self, size: int, work: Callable[[], T]) -> T:
        """Return what work on `size` bytes returns: large work is done on a thread, when it is the sender's turn."""
        return work() if size <= LARGE else await self._intake.turns.do(self._account.sender, work)

    def charge(self, seconds: float) -> None:
        """Count work that was done elsewhere for the request."""
        self._account.sender.charge(seconds, self._intake.turns.clock())

    async def _read(self, request: Request, inflate: Inflater | None, took: list[int]) -> bytes:
        limits, loop = self._limits, asyncio.get_running_loop()
        parts: list[bytes] = []
        sent = 0
        began = loop.time()
        pieces = aiter(request.stream())
        while True:
            slowest = began + min(limits.body_seconds, limits.gap_seconds + sent / limits.min_rate)
            try:
                async with asyncio.timeout_at(min(slowest, loop.time() + limits.gap_seconds)):
                    piece = await anext(pieces, None)
            except TimeoutError:
                raise Refused(408, "the request came too slowly", {"connection": "close"}) from None
            if piece is None:
                break
            sent += len(piece)
            if sent > limits.max_body:
                raise too_large(limits.max_body)
            came = loop.time()
            part = piece if inflate is None else await self._inflated(inflate, piece)
            began += loop.time() - came  # it is not the client that was slow
            if not all(room.fits(len(part), took[0]) for room in self._account.rooms):
                raise come_again("the server holds too many requests; send this again", limits.retry_seconds)
            took[0] += len(part)
            for room in self._account.rooms:
                room.held += len(part)
            parts.append(part)
        if inflate is not None and not inflate.whole:
            raise Refused(400, "the compressed request breaks off")
        return b"".join(parts)

    async def _inflated(self, inflate: Inflater, piece: bytes) -> bytes:
        def push() -> bytes:
            try:
                return inflate.push(piece)
            except Corrupt as error:
                raise Refused(400, f"the request is not in the content encoding it names: {error}") from None
            except TooMuch:
                raise too_large(self._limits.max_body, "decompressed ") from None

        return push() if len(piece) <= SMALL_PIECE else await self._intake.turns.do(self._account.sender, push)


def _inflate(encoding: str | None, limit: int) -> Inflater | None:
    if encoding is None or encoding.strip().lower() in ("", "identity"):
        return None
    window = ENCODINGS.get(encoding.strip().lower())
    if window is None:
        raise Refused(415, "a request may be compressed with gzip or deflate", {"accept-encoding": "gzip, deflate"})
    return Inflater(window, limit, members=True)


def too_large(limit: int, what: str = "") -> Refused:
    """Refusal of a request that will never be taken."""
    return Refused(413, f"a {what}request to the store may have {limit} bytes; send fewer spans at once")


def too_many(count: str, limit: int, what: str) -> Refused:
    """Refusal of a request that holds too much to be ever taken."""
    return Refused(413, f"a request to the store may hold {limit} {what}, not {count}; send fewer at once")


def check_values(calls: Sequence[bytes], most: int, *, json: bool = False) -> None:
    """Raise Refused, with status 413, where calls in MessagePack or JSON hold more values than `most` together."""
    if sum(map(len, calls)) <= most:  # a value has one byte at least
        return
    left = most
    for call in calls:
        left -= (json_values if json else msgpack_values)(call, left)
        if left < 0:
            raise too_many("more", most, "values")
