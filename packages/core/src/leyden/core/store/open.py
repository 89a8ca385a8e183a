"""`open_store`: opens a store by its URI. A backend's libraries are imported only when that backend is opened."""

import os
import time
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from leyden.core.errors import UsageError
from leyden.core.masking import MASK, remember_secret
from leyden.core.store.base import LightningStore
from leyden.core.store.text import without_login

_SUPPORTED = (
    "memory://, sqlite:///relative/path, sqlite:////absolute/path, postgresql://host:port/database, "
    "redis://host:port/number, shard:///path/of/the/list and http(s)://host:port"
)
SCHEMES = frozenset({"memory", "sqlite", "postgresql", "redis", "rediss", "redis+unix", "shard", "http", "https"})
"""Schemes of the URIs of stores."""
TOKEN = "LEYDEN_STORE_TOKEN"
"""Environment variable with the token of a store's server."""


async def open_store(
    uri: str, *, clock: Callable[[], float] = time.time, patience: float | None = None
) -> LightningStore:
    """Open the store at `uri`, and create it if it does not exist.

    URIs: `memory://` (2 GiB of spans at most, or `memory://?budget=BYTES`), `sqlite:///relative/path`,
    `sqlite:////absolute/path`, `postgresql://user:password@host:port/database` (needs `leyden-core[postgresql]`), and
    `redis://host:port/number` (also `rediss://` and `redis+unix://`; needs `leyden-core[redis]`).
    `shard:///relative/path` and `shard:////absolute/path` name a file that lists several of these stores, the shards.
    `http(s)://token@host:port` is a store's server, with its token in the URI or in LEYDEN_STORE_TOKEN.
    Raises UsageError for any other URI. Raises StoreError where a server does not answer or refuses the token.
    `clock` returns Unix seconds, by which attempts time out. A server uses its own clock. Calls wait `patience` seconds
    for a server that does not answer any more, by default ten or fifteen; those of shards always wait as long.
    """
    waits: dict[str, float] = {} if patience is None else {"patience": patience}
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise UsageError(f"{without_login(uri)!r} is not a store's URI; supported are {_SUPPORTED}")
    if scheme == "memory":
        return _open_memory(rest, clock)
    if scheme == "sqlite":
        from leyden.core.store.sql.store import SqlStore

        path = rest.removeprefix("/")
        if path == rest or path in ("", ":memory:"):
            raise UsageError(f"{without_login(uri)!r} names no file; supported are {_SUPPORTED}")
        return await SqlStore.open(path, clock)
    if scheme == "postgresql":
        return await _open_postgres(uri, clock, waits)
    if scheme in ("redis", "rediss", "redis+unix"):
        return await _open_redis(uri, clock, waits)
    if scheme == "shard":
        return await _open_shards(uri, rest, clock)
    if scheme in ("http", "https"):
        return await _open_server(scheme, rest, waits)
    raise UsageError(f"stores of the kind {scheme}:// are not supported; supported are {_SUPPORTED}")


def _open_memory(options: str, clock: Callable[[], float]) -> LightningStore:
    from leyden.core.store.memory import BUDGET_BYTES, MemoryStore

    if not options:
        return MemoryStore(clock, BUDGET_BYTES)
    number = options.removeprefix("?budget=")
    if number == options or not number.isdecimal() or not int(number):
        raise UsageError(f"memory://{options} is not a store's URI: only ?budget=BYTES may follow memory://")
    return MemoryStore(clock, int(number))


async def _open_postgres(uri: str, clock: Callable[[], float], waits: Mapping[str, float]) -> LightningStore:
    try:
        from leyden.core.store.postgres.store import PostgresStore
    except ImportError as error:
        raise UsageError(f"a store in PostgreSQL needs pip install 'leyden-core[postgresql]' ({error})") from error
    return await PostgresStore.open(uri, clock, **waits)


async def _open_redis(uri: str, clock: Callable[[], float], waits: Mapping[str, float]) -> LightningStore:
    try:
        from leyden.core.store.redis.store import RedisStore
    except ModuleNotFoundError as error:
        raise UsageError("a store in Redis needs redis-py: pip install 'leyden-core[redis]'") from error
    return await RedisStore.open(uri, clock, **waits)


async def _open_shards(uri: str, rest: str, clock: Callable[[], float]) -> LightningStore:
    from leyden.core.store.sharded.store import ShardedStore

    path = rest.removeprefix("/")
    if path in (rest, ""):
        raise UsageError(f"{without_login(uri)!r} names no file; supported are {_SUPPORTED}")

    async def open_shard(uri: str) -> LightningStore:
        return await open_store(uri, clock=clock)

    return await ShardedStore.open(path, open_shard)


async def _open_server(scheme: str, rest: str, waits: Mapping[str, float]) -> LightningStore:
    """Open the store of a server, and check that the server accepts the token."""
    from leyden.core.store.http.client import HttpStore

    userinfo, _, address = rest.rpartition("@")
    token_in_uri = next((part for part in reversed(userinfo.split(":")) if part), None)
    if token_in_uri == MASK:  # the form in a run's config.yaml, which keeps no token
        token_in_uri = None
    token = unquote(token_in_uri) if token_in_uri else os.environ.get(TOKEN, "")
    remember_secret(token)
    if not token or not token.isascii() or not token.isprintable() or not address:
        raise UsageError(f"{scheme}://{address} needs its token: set {TOKEN}, or put TOKEN@ before the host")
    store = HttpStore(f"{scheme}://{address}", token, **waits)
    try:
        await store.add_many_spans([])  # changes nothing, and every token permits it
    except BaseException:
        await store.close()
        raise
    return store
