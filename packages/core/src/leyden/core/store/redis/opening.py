"""Checks when a store in Redis is opened: version, durability, and other applications' keys."""

from typing import Any

from leyden.core.errors import StoreError, UsageError
from leyden.core.store.redis.connection import RedisAddress, RedisLink
from leyden.core.store.redis.scripts import UPGRADE, VERSION, RedisKeys

OLDEST = (6, 2)
"""First version of Redis with all commands that are used."""
_SCANNED = 10_000


def check_server(link: RedisLink, address: RedisAddress) -> bool:
    """Return whether Redis may answer before it writes its file; raises UsageError for an unsuitable Redis."""
    server = _facts(link.call("INFO", "server"))
    version = server.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(f"{address} is Redis {version}; Leyden needs {oldest} or newer")
    if server.get("redis_mode") == "cluster":
        raise UsageError(f"{address} is a Redis Cluster; a store needs a single Redis, with or without replicas")
    if not address.allows_loss:
        _check_durable(link, address)
    return _setting(link, "appendfsync") not in ("always", "no")


def is_durable(link: RedisLink) -> bool:
    """Whether Redis writes its data to a file."""
    return _facts(link.call("INFO", "persistence")).get("aof_enabled") == "1"


def _check_durable(link: RedisLink, address: RedisAddress) -> None:
    if not is_durable(link):
        raise UsageError(
            f"{address} stores nothing on disk: set `appendonly yes` in redis.conf (CONFIG SET appendonly yes lasts "
            "until the next restart), or add volatile=allow to the URI if data may be lost"
        )
    memory = _facts(link.call("INFO", "memory"))
    policy = memory.get("maxmemory_policy", "noeviction")
    if memory.get("maxmemory", "0") != "0" and policy != "noeviction":
        raise UsageError(
            f"{address} evicts keys when its memory is full (maxmemory-policy {policy}): set `maxmemory-policy "
            "noeviction`, or add volatile=allow to the URI if data may be lost"
        )


def claim_namespace(link: RedisLink, address: RedisAddress, keys: RedisKeys) -> None:
    """Record the version of the store, and change an older store.

    Raises UsageError when the version is newer, or the keys are another application's.
    """
    kind = link.call("TYPE", keys.schema)
    if kind == b"none":
        _check_empty(link, address, keys)
        link.call("SET", keys.schema, str(VERSION), "NX")
    found: bytes = link.call("GET", keys.schema) if kind in (b"none", b"string") else b""
    if not found.isdigit():
        raise UsageError(_foreign(address, keys))
    if int(found) > VERSION:
        raise UsageError(f"the store {address} was written by a newer version of Leyden; update Leyden to open it")
    if int(found) < VERSION:
        link.call("EVAL", UPGRADE, "0", keys.schema, keys.rollouts, keys.rollouts_of(""), str(VERSION))


def _check_empty(link: RedisLink, address: RedisAddress, keys: RedisKeys) -> None:
    """Check every key, once, when a store is created."""
    cursor = b"0"
    while True:
        cursor, names = link.call("SCAN", cursor, "MATCH", f"{keys.prefix}*", "COUNT", str(_SCANNED))
        if any(name != keys.schema.encode() for name in names) and not link.call("EXISTS", keys.schema):
            raise UsageError(_foreign(address, keys))
        if cursor == b"0":
            return


def _foreign(address: RedisAddress, keys: RedisKeys) -> str:
    return (
        f"{address} has keys under {keys.prefix} that do not belong to a store of Leyden; add ?namespace=name to the "
        "URI"
    )


def _facts(answer: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, separator, value in lines if separator}


def _setting(link: RedisLink, name: str) -> str | None:
    """Return a setting, or None where the user may not read it."""
    try:
        found: list[Any] = link.call("CONFIG", "GET", name)
    except StoreError:
        return None
    return found[1].decode() if found else None
