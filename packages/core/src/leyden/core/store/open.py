"""`open_store`: a store by its URI. Imports a backend's libraries only when that backend is opened."""

import time
from collections.abc import Callable

from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore

_SUPPORTED = (
    "memory://, sqlite:///relative/path, sqlite:////absolute/path and postgresql://user:password@host:port/database"
)


async def open_store(uri: str, *, clock: Callable[[], float] = time.time) -> LightningStore:
    """Open the store at `uri`, creating it if it is not there.

    `memory://`, `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://user:password@host:port/name`;
    raises UsageError for anything else.
    `clock` gives Unix seconds: by it, attempts time out.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise UsageError(f"{uri!r} is not a store's URI; supported are {_SUPPORTED}")
    if scheme == "memory":
        from leyden.core.store.memory import MemoryStore

        return MemoryStore(clock)
    if scheme == "sqlite":
        from leyden.core.store.sql import SqlStore

        path = rest.removeprefix("/")
        if path == rest or path in ("", ":memory:"):
            raise UsageError(f"{uri!r} names no file; supported are {_SUPPORTED}")
        return await SqlStore.open(path, clock)
    if scheme == "postgresql":
        return await _open_postgres(uri, clock)
    raise UsageError(f"stores of the kind {scheme}:// are not supported; supported are {_SUPPORTED}")


async def _open_postgres(uri: str, clock: Callable[[], float]) -> LightningStore:
    try:
        from leyden.core.store.postgres import PostgresStore
    except ImportError as error:
        raise UsageError(f"a store in PostgreSQL needs pip install 'leyden-core[postgresql]' ({error})") from error
    return await PostgresStore.open(uri, clock)
