"""The access table: which kind of token opens which route of which server. Data alone; see `access_cells`.

A further token is a line in `KNOWN` and in the rows that it opens. A further route, or method of a store, is a row: a
test compares the rows with the routes of the applications.
"""

from collections.abc import Mapping
from typing import NamedTuple

OPEN_ATTEMPTS = frozenset({"attempt", "capture's attempt"})
ENDED = frozenset({"ended attempt", "ended capture", "ended agent"})
AGENTS = frozenset({"agent", "agent-reward"})
TRAINER = frozenset({"store"})
NOBODY = frozenset({"none", "garbage", "altered", "of another run", "run"})
"""Kinds that open nothing anywhere. The run's token is never sent: who has it proves that (`agents/run_proof`)."""
WORKER = frozenset({"worker"})
"""A worker that has claimed nothing."""
_OF_ATTEMPTS = OPEN_ATTEMPTS | {"ended attempt", "ended capture", "unknown attempt"}

KNOWN: Mapping[str, frozenset[str]] = {
    "gateway": _OF_ATTEMPTS,
    "path": _OF_ATTEMPTS,
    "capture": _OF_ATTEMPTS,
    "capture begin": frozenset({"capture"}),
    "store": TRAINER | WORKER | AGENTS | {"ended agent", "unknown agent", "agent of an unknown scope"},
    "runners": frozenset[str](),
    "loop": frozenset({"loop"}),
    "anybody": frozenset(),
}
"""What asks for a token, and the kinds of tokens that it knows: those that do not open a route get 403, others 401."""
KINDS = tuple(sorted(NOBODY.union(*KNOWN.values())))

_PRIVATE = frozenset({"gateway", "capture"})
_GATEWAY = _PRIVATE | {"capture begin"}
PLACES: Mapping[str, frozenset[str]] = {
    "bearer": _GATEWAY | {"store", "runners", "loop"},
    "scheme in lower case": _GATEWAY | {"store", "runners"},
    "percent-encoded": _GATEWAY,
    "in a second header": _GATEWAY | {"loop"},
    "private header": _PRIVATE,
    "path": frozenset({"path"}),
    "basic": frozenset(),
    "without a scheme": frozenset(),
    "another scheme": frozenset(),
    "query": frozenset(),
    "x-api-key": _PRIVATE,
    "cookie": frozenset(),
}
"""Where a request may have its token, and what reads it there."""

ALL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "PROPFIND")
_READ = ("GET", "HEAD")


class Row(NamedTuple):
    """One route of a server."""

    site: str
    """`run`: a run's server; `captures`: `leyden gateway`; `store`: `leyden store`."""
    path: str
    """As the application has it; a method of a store in the place of `{method}`."""
    methods: tuple[str, ...]
    asks: str
    """What asks for the token; see `KNOWN`."""
    opens: frozenset[str]
    """Kinds of tokens that are answered; of agents' only what belongs to their own attempt."""
    body: str
    """What a request has to hold; see `access_bodies`."""
    token_first: bool = False
    """Whether the token is asked for before the method is looked at."""
    status: int = 200
    """Of an answer to a request that is in order."""


def _gateway(site: str, prefix: str, asks: str) -> list[Row]:
    stored = f"{prefix}/responses/{{response_id}}"
    return [
        Row(site, f"{prefix}/chat/completions", ("POST",), asks, OPEN_ATTEMPTS, "chat"),
        Row(site, f"{prefix}/completions", ("POST",), asks, OPEN_ATTEMPTS, "completions"),
        Row(site, f"{prefix}/responses", ("POST",), asks, OPEN_ATTEMPTS, "responses"),
        Row(site, f"{prefix}/responses/input_tokens", ("POST",), asks, OPEN_ATTEMPTS, "responses"),
        Row(site, f"{prefix}/messages", ("POST",), asks, OPEN_ATTEMPTS, "messages"),
        Row(site, f"{prefix}/messages/count_tokens", ("POST",), asks, OPEN_ATTEMPTS, "messages to count"),
        Row(site, stored, ("GET", "DELETE"), asks, OPEN_ATTEMPTS, "response", token_first=True),
        Row(site, f"{stored}/input_items", ("GET",), asks, OPEN_ATTEMPTS, "response", token_first=True),
        Row(site, f"{stored}/cancel", ("POST",), asks, OPEN_ATTEMPTS, "response", token_first=True, status=400),
        Row(site, f"{prefix}/models", ("GET",), asks, OPEN_ATTEMPTS, "nothing"),
        Row(site, f"{prefix}/models/{{name:path}}", ("GET",), asks, OPEN_ATTEMPTS, "nothing"),
        Row(site, f"{prefix}/{{path:path}}", ALL_METHODS, asks, OPEN_ATTEMPTS, "nothing", token_first=True, status=404),
    ]


def _pages(site: str) -> list[Row]:
    """What a gateway shows to anybody, and where there is nothing."""
    pages = [
        Row(site, path, ("GET",), "anybody", frozenset(), "nothing")
        for path in ("/healthz", "/metrics", "/openapi.json")
    ]
    return [*pages, Row(site, "/{path:path}", ALL_METHODS, "anybody", frozenset(), "nothing", status=404)]


OF_TRAINERS = (
    "statistics", "start_rollout", "enqueue_rollout", "enqueue_many_rollouts", "dequeue_rollout",
    "dequeue_many_rollouts", "start_attempt", "query_rollouts", "get_rollout_by_id", "find_attempt",
    "update_rollout", "wait_for_rollouts", "query_attempts", "get_latest_attempt", "drop_spans", "add_resources",
    "update_resources", "query_resources", "get_resources_by_id", "get_latest_resources", "query_workers",
    "get_worker_by_id", "update_worker", "add_run", "update_run", "rewind_run", "query_runs", "get_run_by_id",
    "add_metrics", "query_metrics", "add_policy_versions", "update_policy_version", "query_policy_versions",
)  # fmt: skip
"""Methods of a store for trainers alone."""
OF_AGENTS = (
    "add_span", "add_many_spans", "get_next_span_sequence_id", "get_many_span_sequence_ids", "query_spans",
    "update_attempt",
)  # fmt: skip
"""Methods that agents may call, too, for their own attempt."""
OF_WORKERS = frozenset({"get_resources_by_id", "get_latest_resources", "query_attempts"})
"""Methods that need no claim, and of whose answer a worker gets what it has claimed."""
ANSWERED_IN_PARTS = TRAINER | WORKER | AGENTS | {"ended agent", "unknown agent"}
"""What gets an answer to several calls together, in which each call may be refused."""


def _store(site: str, prefix: str) -> list[Row]:
    def call(name: str, opens: frozenset[str], body: str = "call") -> Row:
        return Row(site, f"{prefix}/{name}", ("POST",), "store", opens, body)

    return [
        *(call(name, TRAINER | (WORKER if name in OF_WORKERS else frozenset[str]())) for name in OF_TRAINERS),
        *(call(name, TRAINER | AGENTS) for name in OF_AGENTS),
        call("together", ANSWERED_IN_PARTS, "together"),
        call("v1/traces", TRAINER | WORKER | AGENTS, "otlp"),
        *(
            Row(site, f"{prefix}/{page}", _READ, "anybody", frozenset(), "nothing")
            for page in ("healthz", "metrics", "openapi.json", "docs")
        ),
    ]


def _captures() -> list[Row]:
    alone, site = frozenset({"capture's attempt"}), "captures"
    return [
        Row(site, "/capture/begin", ("POST",), "capture begin", frozenset({"capture"}), "begin"),
        Row(site, "/capture/spans", ("POST",), "capture", alone, "capture spans"),
        Row(site, "/capture/end", ("POST",), "capture", alone | {"ended capture"}, "capture end"),
        Row(site, "/capture/metrics", ("GET",), "anybody", frozenset(), "nothing"),
        Row(site, "/capture/{path:path}", ALL_METHODS, "anybody", frozenset(), "nothing", status=404),
    ]


TABLE: tuple[Row, ...] = (
    *(row for site in ("run", "captures") for row in _gateway(site, "/v1", "gateway")),
    *(row for site in ("run", "captures") for row in _gateway(site, "/a/{token}/v1", "path")),
    *(row for site in ("run", "captures") for row in _pages(site)),
    *_captures(),
    *_store("run", "/store"),
    *_store("store", ""),
    Row("run", "/runners/offer", _READ, "runners", frozenset(), "nothing"),
    Row("run", "/runners/standing", _READ, "runners", frozenset(), "nothing"),
    Row("run", "/runners/workers", _READ, "runners", frozenset(), "nothing"),
    Row("run", "/loop/*", _READ, "loop", frozenset({"loop"}), "nothing", token_first=True),
)

EXCEPTIONS: Mapping[tuple[str, str], int] = {("/capture/spans", "ended capture"): 409}
"""Statuses of refusals that are neither 401 nor 403."""
