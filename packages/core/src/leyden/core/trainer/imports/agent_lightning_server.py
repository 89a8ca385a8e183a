"""Client of the store server of Agent Lightning 0.3 (`agl store`, `LightningStoreServer`): reads all of its store."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from leyden.core.data.rollout import AttemptStatus, RolloutConfig, RolloutMode, RolloutStatus
from leyden.core.errors import LeydenError, UsageError, first_line
from leyden.core.masking import mask_text, printable

T = TypeVar("T")
PREFIX = "/v1/agl"
PAGE = 200
"""Rollouts, or resources, in one request."""
SPANS = 500
"""Spans in one request."""
TRIES = 5
REQUEST_SECONDS = 120.0
MOST_BYTES = 1 << 30
"""Largest answer, in bytes."""


class SourceRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as the server sends it."""

    rollout_id: str
    input: Any = None
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus
    config: RolloutConfig = RolloutConfig()
    metadata: dict[str, Any] | None = None


class SourceAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as the server sends it."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float | None = None
    status: AttemptStatus
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a span ended."""

    status_code: Literal["UNSET", "OK", "ERROR"] = "UNSET"
    description: str | None = None


class SourceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a span."""

    name: str
    attributes: dict[str, Any] = {}
    timestamp: float | None = None


class SourceContext(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a span."""

    trace_id: str
    span_id: str
    is_remote: bool = False
    trace_state: dict[str, str] = {}


class SourceLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link of a span."""

    context: SourceContext
    attributes: dict[str, Any] | None = None


class SourceResource(msgspec.Struct, frozen=True, kw_only=True):
    """OpenTelemetry's resource of a span."""

    attributes: dict[str, Any] = {}
    schema_url: str = ""


class SourceSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span as the server sends it, without the fields that repeat others."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    status: SourceStatus = SourceStatus()
    attributes: dict[str, Any] = {}
    events: list[SourceEvent] = []
    links: list[SourceLink] = []
    start_time: float | None = None
    end_time: float | None = None
    context: SourceContext | None = None
    resource: SourceResource = SourceResource()


class SourceResources(msgspec.Struct, frozen=True, kw_only=True):
    """The current version of resources under an id."""

    resources_id: str
    version: int
    create_time: float
    update_time: float
    resources: dict[str, dict[str, Any]] = {}


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    items: list[msgspec.Raw]
    total: int


class AgentLightningServer:
    """The store server at `url`, which needs no token. Use it as an async context manager.

    All methods raise LeydenError if the server does not answer, and UsageError if it is not a store server.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "AgentLightningServer":
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=5.0)
        self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            await self._check()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def count_rollouts(self) -> int:
        """Return the number of rollouts."""
        return (await self._page("rollouts", {"limit": 1, "offset": 0})).total

    def rollouts(self) -> AsyncGenerator[SourceRollout]:
        """Return all rollouts, the oldest first."""
        return self._all("rollouts", SourceRollout, PAGE, sort_by="start_time")

    def resources(self) -> AsyncGenerator[SourceResources]:
        """Return all resources, those that were updated last at the end."""
        return self._all("resources", SourceResources, PAGE, sort_by="update_time")

    def attempts(self, rollout_id: str) -> AsyncGenerator[SourceAttempt]:
        """Return the attempts of a rollout, in order."""
        return self._all(f"rollouts/{quote(rollout_id, safe='')}/attempts", SourceAttempt, PAGE, sort_by="sequence_id")

    def spans(self, rollout_id: str, attempt_id: str) -> AsyncGenerator[SourceSpan]:
        """Return the spans of an attempt, in order."""
        query = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sort_by": "sequence_id"}
        return self._all("spans", SourceSpan, SPANS, **query)

    async def count_workers(self) -> int:
        """Return the number of workers."""
        return (await self._page("workers", {"limit": 1, "offset": 0})).total

    async def _check(self) -> None:
        try:
            answer = await self._get("health", {}, tries=1)
            is_store = msgspec.json.decode(answer, type=dict[str, Any]).get("status") == "ok"
        except msgspec.MsgspecError:
            is_store = False
        if not is_store:
            raise UsageError(f"{self.url} is not a store server of Agent Lightning 0.3: its {PREFIX}/health is another")

    async def _all(self, path: str, kind: type[T], size: int, **query: str) -> AsyncGenerator[T]:
        """Return the items of all pages. A page that other writers shift may repeat an item, and never skips one."""
        offset = 0
        while True:
            page = await self._page(path, {**query, "limit": size, "offset": offset})
            for raw in page.items:
                try:
                    yield msgspec.json.decode(raw, type=kind)
                except msgspec.MsgspecError as error:
                    raise LeydenError(
                        f"{self.url} sent {path} that Agent Lightning 0.3 does not have: {error}"
                    ) from None
            offset += len(page.items)
            if not page.items or offset >= page.total:
                return

    async def _page(self, path: str, query: dict[str, str | int]) -> _Page:
        try:
            return msgspec.json.decode(await self._get(path, query), type=_Page)
        except msgspec.MsgspecError as error:
            raise LeydenError(f"{self.url} sent {path} that Agent Lightning 0.3 does not have: {error}") from None

    async def _get(self, path: str, query: dict[str, str | int], tries: int | None = None) -> bytes:
        assert self._session is not None  # opened as a context manager
        problem = ""
        for left in reversed(range(TRIES if tries is None else tries)):
            try:
                async with self._session.get(f"{self.url}{PREFIX}/{path}", params=query) as answer:
                    body = await answer.content.read(MOST_BYTES)
                    if answer.status < 400:
                        return body
                    problem = f"status {answer.status}{_said(body)}"
                    if answer.status < 500:
                        raise UsageError(f"{self.url}{PREFIX}/{path} answers with {problem}")
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = first_line(error)
            if left:
                await asyncio.sleep(1.0)
        raise LeydenError(f"{self.url} does not answer: {problem}; run the command again to continue")


def _said(body: bytes) -> str:
    """Return the beginning of an error's text in one line, after a colon; empty for a page of another server."""
    text = " ".join(body[:200].decode(errors="replace").split())
    return "" if not text or text.startswith("<") else f": {printable(text)}"


def check_url(uri: str) -> str:
    """Return the URL of a store server. Raises UsageError for any other URI, with what to do for MongoDB."""
    parts = urlsplit(uri)
    if parts.scheme in ("mongodb", "mongodb+srv"):
        raise UsageError(
            "Agent Lightning's own server reads its MongoDB: run `agl store --backend mongo --mongo-uri URI`, and "
            "import from http://127.0.0.1:4747"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{mask_text(uri)!r} is not the URL of a store server, such as http://127.0.0.1:4747")
    return uri
