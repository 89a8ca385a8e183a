"""How much room spans take: on disk in what is durable, in memory in what is not.

A conversation of thirty turns is held against its tokens, each once, of eight bytes each (an id and a log-probability),
and its messages, once.
"""

import asyncio
import gc
import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import psycopg

from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import Span
from leyden.core.store.open import open_store
from stores.floors import redis_of
from stores.ingest import claim
from stores.material import Kind, attempts_for, make_conversation, make_spans
from stores.places import new_uris

TURNS, CONVERSATIONS = 30, 10
TOKEN_BYTES, ID_BYTES = 8, 4
"""Of a token with its log-probability, and of a packed id."""
_COMMIT = 100
_ANYBODY = Attempt(rollout_id="ro", attempt_id="at", sequence_id=1, start_time=0.0, status="running")


def room(backend: str, folder: Path, spans: int) -> list[dict[str, Any]]:
    """Measure bytes a span of either kind, and of a conversation, each in a store of its own."""
    found: list[dict[str, Any]] = []
    least = least_bytes(make_conversation(_ANYBODY, TURNS))
    with new_uris(backend, folder) as new_uri:
        for kind in get_args(Kind):
            grown = asyncio.run(_grown(backend, new_uri(), kind, spans, _COMMIT))
            found.append({"backend": backend, "what": kind, "bytes": grown / spans})
        for what, per_commit in (("conversation", 1), ("conversation at once", TURNS)):
            grown = asyncio.run(_grown(backend, new_uri(), None, TURNS * CONVERSATIONS, per_commit)) / CONVERSATIONS
            found.append({"backend": backend, "what": what, "bytes": grown, "least": least, "ratio": grown / least})
    return found


def least_bytes(calls: Sequence[Span]) -> int:
    """Return what the unique tokens and the messages of a conversation come to."""
    last = calls[-1].attributes
    messages = f"{last[semconv.INPUT_MESSAGES]}{last[semconv.OUTPUT_MESSAGES]}"
    packed = [last[semconv.PROMPT_IDS], last[semconv.RESPONSE_IDS]]
    tokens = sum(len(ids) for ids in packed if isinstance(ids, bytes)) // ID_BYTES
    return TOKEN_BYTES * tokens + len(messages.encode())


async def _grown(backend: str, uri: str, kind: Kind | None, count: int, per_commit: int) -> int:
    """Return by how many bytes the store grows; spans of no kind are those of conversations."""
    store = await open_store(uri)
    try:
        attempts = await claim(store, CONVERSATIONS if kind is None else attempts_for(count))
        if kind is None:
            spans = [
                span for n, attempt in enumerate(attempts) for span in make_conversation(attempt, TURNS, n * TURNS)
            ]
        else:
            spans = make_spans(kind, attempts, count)
        gc.collect()
        before = await asyncio.to_thread(SIZES[backend], uri)
        for start in range(0, count, per_commit):
            await store.add_many_spans(spans[start : start + per_commit])
        return await asyncio.to_thread(SIZES[backend], uri) - before
    finally:
        await store.close()


def _allocated(uri: str) -> int:
    """Memory that Python has allocated since it was asked first; the spans themselves were there before."""
    tracemalloc.start()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _sqlite_file(uri: str) -> int:
    """The file, all that was written being in it, less its empty pages."""
    connection = sqlite3.connect(uri.removeprefix("sqlite:///"), timeout=20.0)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, empty, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    finally:
        connection.close()
    return (pages - empty) * size


def _postgres_table(uri: str) -> int:
    """The table of spans with its indexes, and what PostgreSQL keeps apart for its long values."""
    with psycopg.connect(uri) as connection:
        row = connection.execute("SELECT pg_total_relation_size('spans')").fetchone()
    assert row is not None, "a SELECT without a FROM gives a row"
    return row[0]


def _redis_file(uri: str) -> int:
    """The append-only file, written anew."""
    connection: Any = redis_of(uri)
    try:
        connection.bgrewriteaof()
        while True:
            info = connection.info("persistence")
            if not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]:
                return int(info["aof_current_size"])
            time.sleep(0.01)
    finally:
        connection.close()


SIZES: Mapping[str, Callable[[str], int]] = {
    "memory": _allocated,
    "sqlite": _sqlite_file,
    "postgresql": _postgres_table,
    "redis": _redis_file,
}
"""Bytes that a store takes, by backend; behind a server it is that of the store there."""
