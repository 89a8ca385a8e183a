"""Cells of the access table: what a request of each should be answered, and the servers that answer it, in process."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import quote, unquote

from access_bodies import FAULTY, VARIANTS, Body, Names, basic
from access_table import (
    AGENTS,
    ALL_METHODS,
    ENDED,
    EXCEPTIONS,
    KINDS,
    KNOWN,
    OF_AGENTS,
    PLACES,
    TABLE,
    WORKER,
    Row,
)
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message

from leyden.core.data import semconv
from leyden.core.store.rpc import BATCH_PATH, methods

FAULTS = frozenset({400, 404, 409, 413, 415, 422})
"""Statuses of requests that are not in order."""
WITH_SPANS = frozenset({"otlp", "together", "capture spans", "capture end"})
"""Bodies that hold spans, beside those of calls that add some."""
TOKEN_HEADERS: Mapping[str, str] = {
    "bearer": "Bearer {}",
    "scheme in lower case": "bearer {}",
    "without a scheme": "{}",
    "another scheme": "Token {}",
}


class Cell(NamedTuple):
    """One request."""

    row: Row
    kind: str
    """Of token; see `KINDS`."""
    place: str
    """Where the token is; see `PLACES`."""
    method: str
    variant: str
    """Of body; see `VARIANTS`."""

    @property
    def seen(self) -> str | None:
        """The kind of token that the server sees, None where it sees none that it knows."""
        return self.kind if self.row.asks in PLACES[self.place] and self.kind in KNOWN[self.row.asks] else None

    @property
    def is_open(self) -> bool:
        """Whether a request in order is answered."""
        right = self.method in self.row.methods
        return right and (self.row.asks == "anybody" or self.seen in self.row.opens)

    @property
    def may_write(self) -> bool:
        """Whether it may change a store."""
        return self.is_open and self.seen is not None and self.seen not in ENDED | WORKER | {"unknown agent"}

    def statuses(self) -> frozenset[int]:
        """What it may be answered."""
        if self.method not in self.row.methods:
            return self._of_wrong_method()
        if not self.is_open:
            refusal = EXCEPTIONS.get((self.row.path, self.kind), 403) if self.seen else 401
            checked_first = self.seen is not None and self.seen != "agent of an unknown scope"
            late = {400, 413, 415} if checked_first and self.variant in FAULTY else set[int]()
            return frozenset({refusal, *late})
        return self._of_open()

    def _of_wrong_method(self) -> frozenset[int]:
        if self.row.token_first and self.seen is None:
            return frozenset({401})
        if self.row.token_first and self.seen not in self.row.opens:
            return frozenset({403, 405})
        is_page_of_store = self.row.asks == "anybody" and "HEAD" in self.row.methods
        if is_page_of_store and self.method == "POST":  # it is no method of a store
            return frozenset({400, 401, 403, 404, 415})
        return frozenset({405})

    def _of_open(self) -> frozenset[int]:
        own = frozenset({self.row.status})
        if self.row.asks == "anybody" or self.row.body == "nothing":
            return own
        if self.variant in FAULTY:
            return own | FAULTS
        if self.row.body == "response":
            return frozenset({404}) if self.variant == "other" else own | {404}
        if self.row.body == "responses" and self.variant == "other":
            return frozenset({400})
        if self.row.body != "call":
            return own
        if self.seen in AGENTS and self.variant == "other":
            return frozenset({403})
        with_span = self.row.path.endswith(("add_span", "add_many_spans"))
        if self.seen == "agent" and self.variant == "reward" and with_span:
            return frozenset({403})
        return own if self.seen in AGENTS else own | {422}


class Write(NamedTuple):
    """A call that reached the store and could change it."""

    method: str
    arguments: Mapping[str, Any]

    def attempts(self) -> set[tuple[str, str]]:
        """The attempts that it names."""
        given = self.arguments
        named = [tuple(pair) for pair in given.get("rollout_attempt_ids", ())]
        named += [(span.rollout_id, span.attempt_id) for span in self.spans()]
        if "attempt_id" in given:
            named.append((given["rollout_id"], given["attempt_id"]))
        return set(cast("list[tuple[str, str]]", named))

    def spans(self) -> list[Any]:
        """The spans that it stores."""
        return [*self.arguments.get("spans", ()), *([self.arguments["span"]] if "span" in self.arguments else [])]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a cell was answered."""

    status: int
    body: bytes


def any_cell(rng: random.Random, rows: tuple[Row, ...] = TABLE) -> Cell:
    """A cell; two in three have a method and a place that the route reads."""
    row = rng.choice(rows)
    method = rng.choice(row.methods) if rng.random() < 0.67 else rng.choice(ALL_METHODS)
    usual = "path" if row.asks == "path" else "bearer"
    place = usual if rng.random() < 0.67 else rng.choice([place for place in PLACES if _fits(row, place)])
    return Cell(row, rng.choice(KINDS), place, method, rng.choice(VARIANTS))


def main_cells() -> Iterator[Cell]:
    """Each route with each kind of token where it belongs: about the token's own attempt, about another, and forged."""
    for row in TABLE:
        place = "path" if row.asks == "path" else "bearer"
        with_spans = row.body in WITH_SPANS or row.path.endswith(("add_span", "add_many_spans"))
        variants = ("own", "other", "forged", "reward") if with_spans else ("own", "other")
        yield from (Cell(row, kind, place, row.methods[0], variant) for kind in KINDS for variant in variants)


def _fits(row: Row, place: str) -> bool:
    return place != "path" or row.asks == "path"


def routes_of(app: Any, prefix: str = "") -> Iterator[str]:
    """The paths of an application's routes; `*` for an application that does not say which it has."""
    for route in app.routes:
        path = prefix + cast("Mount | Route", route).path
        if isinstance(route, Mount):
            yield from routes_of(route.app, path) if hasattr(route.app, "routes") else [f"{path}/*"]
        elif path.endswith("/{method}"):
            yield from (path.replace("{method}", name) for name in (*methods(), BATCH_PATH))
        else:
            yield path


def request_of(cell: Cell, token: str, body: Body, names: Names) -> tuple[str, str, list[tuple[str, str]]]:
    """Path, query and headers of a cell's request."""
    headers = [("host", "127.0.0.1"), *body.headers.items()]
    path_token, query = "x", ""
    if cell.kind != "none":
        path_token = token if cell.place == "path" else "x"
        query = f"token={quote(token)}&api_key={quote(token)}" if cell.place == "query" else ""
        headers += headers_of(cell.place, token)
    path = (
        cell.row.path.replace("{token}", quote(path_token, safe=""))
        .replace("{response_id}", quote(names.response_id, safe=""))
        .replace("{name:path}", "policy")
        .replace("{path:path}", "nothing/here")
        .replace("*", "hello")
    )
    return path, query, headers


def headers_of(place: str, token: str) -> list[tuple[str, str]]:
    """The headers that hold a token."""
    if place in TOKEN_HEADERS:
        return [("authorization", TOKEN_HEADERS[place].format(token))]
    if place == "percent-encoded":
        return [("authorization", "Bearer " + "".join(f"%{ord(letter) % 256:02x}" for letter in token))]
    if place == "in a second header":
        return [("authorization", "Bearer nothing"), ("authorization", f"Bearer {token}")]
    return {
        "private header": [(semconv.HEADER_ATTEMPT, token)],
        "basic": [("authorization", f"Basic {basic(token)}")],
        "x-api-key": [("x-api-key", token), ("api-key", token)],
        "cookie": [("cookie", f"token={token}; authorization=Bearer {token}")],
    }.get(place, [])


async def ask(app: ASGIApp, method: str, path: str, query: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
    """Send one request to an application; what it raises is a 500, as it is to a client."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, parts = [500], list[bytes]()

    async def receive() -> Message:
        if coming:
            return coming.pop()
        return await asyncio.get_running_loop().create_future()  # the client stays

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            status[0] = message["status"]
        else:
            parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception as error:
        return Answer(500, repr(error).encode())
    return Answer(status[0], b"".join(parts))


def altered(token: str, rng: random.Random) -> str:
    """The token with something about it that is wrong."""
    ways = [
        token[:-1],
        token[1:],
        token + "x",
        token + ".",
        token.swapcase(),
        token[::-1],
        f"{token}.{token}",
        f"agent-reward.{token}",
        f".{token}",
        token.replace("agent.", "agent-reward.", 1) + "",
        token.rpartition(".")[0] + "." + "A" * 24,
        token.partition(".")[2] or "x",
    ]
    return rng.choice([way for way in ways if way != token])


GARBAGE = (
    "x",
    "sk-0123456789",
    "null",
    "undefined",
    "..",
    "a.b.c",
    "agent..",
    "agent.a.b.c",
    "é" * 9,
    "%00",
    "A" * 9000,
)


def effects(cell: Cell, writes: list[Write], own: tuple[str, str]) -> list[str]:
    """What the writes of a cell did that its token does not allow."""
    if not cell.may_write:
        return [f"{write.method} reached the store" for write in writes]
    if cell.seen == "store" and cell.row.site == "store":  # a gateway elsewhere has this token, and is believed
        return []
    if cell.seen in ("store", "run", "loop"):
        return [what for write in writes for what in _unfounded(cell, write)]
    found: list[str] = []
    allowed = {*OF_AGENTS, "start_rollout"} if cell.seen == "capture" else set(OF_AGENTS)
    for write in writes:
        if write.method not in allowed:
            found.append(f"{write.method} reached the store")
        if write.attempts() - {own}:
            found.append(f"{write.method} named {write.attempts() - {own}}")
        found += _unfounded(cell, write)
    return found


def _unfounded(cell: Cell, write: Write) -> list[str]:
    """What stored spans hold that only a gateway, or a trainer, may write."""
    by_gateway = cell.row.asks in ("gateway", "path")
    found: list[str] = []
    for span in write.spans():
        if not by_gateway and not semconv.CALL_RECORD.isdisjoint(span.attributes):
            found.append("a span with the record of a call was stored")
        if cell.seen == "agent" and semconv.REWARD_VALUE in span.attributes:
            found.append("a reward was stored")
    return found
