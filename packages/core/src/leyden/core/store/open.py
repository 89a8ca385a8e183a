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
    Raises UsageError for any other URI, and where a server refuses the token. Raises StoreError where none answers.
    `clock` returns Unix seconds, by which attempts time out. A server uses its own clock. Calls wait `patience` seconds
    for a server that does not answer any more, by default ten or fifteen; those of shards always wait as long.
    """
    waits: dict[str, float] = {} if patience is None else {"patience": patience}
    check_uri(uri)
    scheme, _, rest = uri.partition("://")
    if scheme == "memory":
        from leyden.core.store.memory import MemoryStore

        return MemoryStore(clock, _budget(rest))
    if scheme == "sqlite":
        from leyden.core.store.sql.store import SqlStore

        return await SqlStore.open(rest.removeprefix("/"), clock)
    if scheme == "postgresql":
        from leyden.core.store.postgres.store import PostgresStore

        return await PostgresStore.open(uri, clock, **waits)
    if scheme == "shard":
        return await _open_shards(rest.removeprefix("/"), clock)
    if scheme in ("http", "https"):
        return await _open_server(scheme, rest, waits)
    from leyden.core.store.redis.store import RedisStore

    return await RedisStore.open(uri, clock, **waits)


def check_uri(uri: str) -> None:
    """Raise UsageError for a URI that no store has, or whose library is missing. Neither files nor servers are used."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise UsageError(f"{without_login(uri)!r} is not a store's URI; supported are {_SUPPORTED}")
    if scheme not in SCHEMES:
        raise UsageError(f"stores of the kind {scheme}:// are not supported; supported are {_SUPPORTED}")
    if scheme in ("sqlite", "shard") and (not rest.startswith("/") or rest in ("/", "/:memory:")):
        raise UsageError(f"{without_login(uri)!r} names no file; supported are {_SUPPORTED}")
    if scheme == "memory":
        _budget(rest)
    elif scheme == "postgresql":
        try:
            from leyden.core.store.postgres.opening import parsed
        except ImportError as error:
            raise UsageError(f"a store in PostgreSQL needs pip install 'leyden-core[postgresql]' ({error})") from error
        parsed(uri)
    elif scheme in ("redis", "rediss", "redis+unix"):
        try:
            from leyden.core.store.redis.connection import address_of
        except ModuleNotFoundError as error:
            raise UsageError("a store in Redis needs redis-py: pip install 'leyden-core[redis]'") from error
        address_of(uri)


def _budget(options: str) -> int:
    """Return the bytes of spans that a store in memory may have, from what follows `memory://`."""
    from leyden.core.store.memory import BUDGET_BYTES

    if not options:
        return BUDGET_BYTES
    number = options.removeprefix("?budget=")
    if number == options or not number.isdecimal() or not int(number):
        raise UsageError(f"memory://{options} is not a store's URI: only ?budget=BYTES may follow memory://")
    return int(number)


async def _open_shards(path: str, clock: Callable[[], float]) -> LightningStore:
    from leyden.core.store.sharded.store import ShardedStore

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
        await store.check()
    except BaseException:
        await store.close()
        raise
    return store
