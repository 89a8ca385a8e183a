"""`RequestAdmission`: limits the requests that a store's server has in progress, in total and per sender.

Invariants, whatever clients send, and however it is compressed: the requests in progress hold at most `max_held` bytes
and one request for trainers. They hold at most `max_held_by_agents` bytes and one request for agents, and each agent
has a share of its own. An agent therefore takes no room from trainers, and at most its share from other agents.
Requests for which there is no room are refused with status 429, and may be sent again.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from leyden.core.data.encoding.decompression import DEFLATE, GZIP, Corrupt, Inflater, TooLarge
from leyden.core.store.http.body_counting import json_values, msgpack_values
from leyden.core.store.http.long_work import LARGE, FairScheduler, Sender
from leyden.core.store.http.refused import Refused, retry_later

T = TypeVar("T")

SCALE_AT = 5_000
ENCODINGS = {"gzip": GZIP, "x-gzip": GZIP, "deflate": DEFLATE}
"""Content encodings that a body may have, with zlib's `wbits` values."""
SMALL_PIECE = 256
"""Bytes that decompress to a quarter of a megabyte at most; they are decompressed at once, and more on a thread."""
_KEPT = 1024
"""Number of accounts above which those without a request are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Limits of the requests of one agent's token, which leave room for others."""

    max_held: int = 64 << 20
    """Bytes of all its requests; a single request is always accepted."""
    max_requests: int = 32
    """Requests that are read or processed at once; further ones wait."""
    wait_seconds: float = 5.0
    """Longest wait of a further request."""
    max_parts: int = 256
    """Calls in one request."""
    max_spans: int = 4_096
    """Spans of one call, or of one OTLP request."""
    max_values: int = 500_000
    """Values of one request, keys and containers included: twice as many as a span may have and be kept whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a store's server. The defaults fit a machine with a few gigabytes of memory."""

    max_body: int = 64 << 20
    """Bytes of one request, both as sent and as decompressed."""
    max_json: int = 16 << 20
    """Bytes of one OTLP request in JSON, which takes much longer to parse than protobuf."""
    max_span: int = 16 << 20
    """Bytes of one span in an OTLP request."""
    max_parts: int = 1024
    """Calls in one request."""
    max_spans: int = 20_000
    """Spans of one OTLP request."""
    max_values: int = 2_000_000
    """Values of one OTLP request: fields of protobuf; keys, values and containers in JSON."""
    max_held: int = 256 << 20
    """Bytes of all trainers' requests that are read or processed; a single request is always accepted."""
    max_held_by_agents: int = 128 << 20
    """Bytes of all agents' requests that are read or processed; a single request is always accepted."""
    max_waiting_spans: int = 20_000
    """Number of spans waiting to be written above which further ones are refused with status 429."""
    scale_at: int = SCALE_AT
    """Number of waiting spans from which `/metrics` signals that more servers are needed."""
    retry_seconds: int = 1
    """Seconds in the header `Retry-After`."""
    body_seconds: float = 120.0
    """Longest time for the whole body of a request."""
    gap_seconds: float = 30.0
    """Longest time between two pieces of a body."""
    min_rate: int = 1 << 10
    """Smallest average bytes a second of a body, once it has taken `gap_seconds`."""
    agent: AgentLimits = field(default_factory=AgentLimits)


class _ByteBudget:
    """A limited number of bytes that requests may hold."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def fits(self, size: int, own: int) -> bool:
        """Whether there is room for `size` more bytes of a request that holds `own`; a single request always fits."""
        return self.held + size <= self._most or self.held == own


class _SenderAccount:
    """Requests of one sender, and the budgets whose bytes they use."""

    def __init__(
        self, sender: Sender, budgets: tuple[_ByteBudget, ...], owner: Hashable = None, at_once: int = 0
    ) -> None:
        self.sender, self.budgets, self.owner = sender, budgets, owner
        self.requests = 0
        """Number of requests, waiting ones included."""
        self.request_slots = asyncio.Semaphore(at_once)
        self.small, self.large = asyncio.Lock(), asyncio.Lock()


class RequestAdmission:
    """Counts the requests and spans in progress. Used on one event loop only."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.scheduler = FairScheduler()
        self.spans = 0
        """Number of spans that wait to be written."""
        self._trainers, self._agents = _ByteBudget(limits.max_held), _ByteBudget(limits.max_held_by_agents)
        self._trainer = _SenderAccount(self.scheduler.sender(agent=False), (self._trainers,))
        self._accounts: dict[Hashable, _SenderAccount] = {}

    @property
    def held(self) -> int:
        """Bytes of requests that are read or processed."""
        return self._trainers.held + self._agents.held

    def check_waiting_spans(self) -> None:
        """Raise Refused, with status 429, while too many spans wait."""
        if self.spans >= self.limits.max_waiting_spans:
            raise retry_later(
                f"{self.spans} spans are waiting to be written; send these again later", self.limits.retry_seconds
            )

    @contextmanager
    def writing(self, spans: int) -> Generator[None]:
        """Count spans as waiting inside the block."""
        self.spans += spans
        try:
            yield
        finally:
            self.spans -= spans

    @asynccontextmanager
    async def admit(self, owner: Hashable | None) -> "AsyncGenerator[AdmittedRequest]":
        """Count a request of the agent `owner`, None for a trainer, inside the block, and give its `AdmittedRequest`.

        Requests of an agent above the number that it may make at once wait, since a refused client would only send the
        next one. Raises Refused, with status 429, where the wait takes too long.
        """
        account = self._trainer if owner is None else self._account(owner)
        self.scheduler.note(account.sender)
        account.requests += 1
        try:
            async with self._request_slot(account):
                yield AdmittedRequest(self, account)
        finally:
            account.requests -= 1
            if not self._is_used(account):
                self._accounts.pop(owner, None)

    @asynccontextmanager
    async def _request_slot(self, account: _SenderAccount) -> AsyncGenerator[None]:
        """Wait until the sender has fewer requests in progress than its limit."""
        if account.owner is None:
            yield
            return
        limits = self.limits.agent
        try:
            async with asyncio.timeout(limits.wait_seconds):
                await account.request_slots.acquire()
        except TimeoutError:
            line = f"an agent may make {limits.max_requests} requests at once; send this again later"
            raise retry_later(line, self.limits.retry_seconds) from None
        try:
            yield
        finally:
            account.request_slots.release()

    def _account(self, owner: Hashable) -> _SenderAccount:
        account = self._accounts.get(owner)
        if account is None:
            if len(self._accounts) >= _KEPT:
                self._accounts = {key: known for key, known in self._accounts.items() if self._is_used(known)}
            budgets = self._agents, _ByteBudget(self.limits.agent.max_held)
            account = _SenderAccount(self.scheduler.sender(agent=True), budgets, owner, self.limits.agent.max_requests)
            self._accounts[owner] = account
        return account

    def _is_used(self, account: _SenderAccount) -> bool:
        return account.requests > 0 or account.sender.has_pause_left(self.scheduler.clock())


class AdmittedRequest:
    """One request, and the resources that it uses."""

    def __init__(self, admission: RequestAdmission, account: _SenderAccount) -> None:
        self._admission, self._account = admission, account
        self._limits = admission.limits

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncGenerator[bytes]:
        """Read the request's body, decompressed, and count its bytes inside the block.

        Raises Refused with status 400 (body does not match its headers), 408 (too slow), 413 (too large), 415
        (unsupported content encoding) or 429 (no room).
        """
        inflate = _inflate(request.headers.get("content-encoding"), self._limits.max_body)
        if int(request.headers.get("content-length", 0)) > self._limits.max_body:
            raise too_large(self._limits.max_body)
        held = [0]
        try:
            yield await self._read(request, inflate, held)
        finally:
            for budget in self._account.budgets:
                budget.held -= held[0]

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncGenerator[None]:
        """Reserve, inside the block, what processing a request of `size` bytes needs.

        For each agent, one large request is processed at a time; while other senders are active, also one small one.
        """
        account, scheduler = self._account, self._admission.scheduler
        if account.owner is None or (size <= LARGE and not scheduler.others_send(account.sender)):
            yield
        else:
            async with account.small if size <= LARGE else account.large:
                yield

    async def do(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work` on `size` bytes; large work is done on a thread, in the sender's turn."""
        return work() if size <= LARGE else await self._admission.scheduler.do(self._account.sender, work)

    def charge(self, seconds: float) -> None:
        """Count work that was done outside of `do` for the request."""
        self._account.sender.charge(seconds, self._admission.scheduler.clock())

    async def _read(self, request: Request, inflate: Inflater | None, held: list[int]) -> bytes:
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
                raise Refused(408, "the request arrived too slowly", {"connection": "close"}) from None
            if piece is None:
                break
            sent += len(piece)
            if sent > limits.max_body:
                raise too_large(limits.max_body)
            came = loop.time()
            part = piece if inflate is None else await self._inflated(inflate, piece)
            began += loop.time() - came  # this time was not spent waiting for the client
            if not all(budget.fits(len(part), held[0]) for budget in self._account.budgets):
                raise retry_later("the server holds too many requests; send this again later", limits.retry_seconds)
            held[0] += len(part)
            for budget in self._account.budgets:
                budget.held += len(part)
            parts.append(part)
        if inflate is not None and not inflate.whole:
            raise Refused(400, "the compressed request is incomplete")
        return b"".join(parts)

    async def _inflated(self, inflate: Inflater, piece: bytes) -> bytes:
        def push() -> bytes:
            try:
                return inflate.push(piece)
            except Corrupt as error:
                raise Refused(400, f"the request is not in the content encoding it names: {error}") from None
            except TooLarge:
                raise too_large(self._limits.max_body, "decompressed ") from None

        return push() if len(piece) <= SMALL_PIECE else await self._admission.scheduler.do(self._account.sender, push)


def _inflate(encoding: str | None, limit: int) -> Inflater | None:
    if encoding is None or encoding.strip().lower() in ("", "identity"):
        return None
    window = ENCODINGS.get(encoding.strip().lower())
    if window is None:
        raise Refused(415, "a request may be compressed with gzip or deflate", {"accept-encoding": "gzip, deflate"})
    return Inflater(window, limit, members=True)


def too_large(limit: int, what: str = "") -> Refused:
    """Return the refusal of a request that is too large in any case."""
    return Refused(413, f"a {what}request to the store may have at most {limit} bytes; send fewer spans at once")


def too_many(count: str, limit: int, what: str) -> Refused:
    """Return the refusal of a request with too many items."""
    return Refused(413, f"a request to the store may hold at most {limit} {what}, not {count}; send fewer at once")


def check_values(calls: Sequence[bytes], most: int, *, json: bool = False) -> None:
    """Raise Refused, with status 413, where calls in MessagePack or JSON hold more than `most` values together."""
    if sum(map(len, calls)) <= most:  # a value has at least one byte
        return
    left = most
    for call in calls:
        left -= (json_values if json else msgpack_values)(call, left)
        if left < 0:
            raise too_many("more", most, "values")
