"""Where stores are: URIs of every backend, on servers that are started for the benchmark and go with it.

Every engine is as durable as a store asks it to be: PostgreSQL waits for `fsync`, Redis writes its append-only file and
syncs it once a second (`appendfsync everysec`), SQLite is in WAL mode with `synchronous=NORMAL`. Knows nothing of what
is measured.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from leyden.core.errors import UsageError
from leyden.core.testing.servers import postgres_server
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer

BACKENDS = ("memory", "sqlite", "postgresql", "redis", "http")
SHARED = ("sqlite", "postgresql", "redis", "http")
"""Those that another process can open."""
TOKEN = "a-token-for-benchmarks"

NewUri = Callable[[], str]
"""Gives the URI of another empty store."""


def missing(backend: str) -> str | None:
    """Return why a backend cannot be measured here, or None."""
    if backend == "postgresql":
        return postgres_server.missing()
    return NO_REDIS if backend == "redis" and PROGRAM is None else None


@contextmanager
def new_uris(backend: str, folder: Path) -> Generator[NewUri]:
    """Start what a backend needs, for the length of the block."""
    names = count()
    folder.mkdir(parents=True, exist_ok=True)
    if backend == "memory":
        yield lambda: "memory://"
    elif backend == "sqlite":
        yield lambda: f"sqlite:///{folder}/store-{next(names)}.db"
    elif backend == "postgresql":
        with PostgresServer(durable=True) as server:
            yield lambda: server.uri_of(server.create())
    elif backend == "redis":
        with RedisServer() as redis:
            yield lambda: redis.uri(f"bench-{next(names)}")
    else:
        servers: list[subprocess.Popen[str]] = []
        try:
            yield lambda: served(f"sqlite:///{folder}/served-{next(names)}.db", servers)
        finally:
            for process in servers:
                process.terminate()
                process.wait()


def served(uri: str, servers: "list[subprocess.Popen[str]]") -> str:
    """Start `leyden store` as a user does, and stop the one before."""
    for process in servers:
        process.terminate()
        process.wait()
    command = [sys.executable, "-m", "leyden.core.cli", "store", "--uri", uri, "--port", "0", "--json"]
    environment = {**os.environ, "LEYDEN_STORE_TOKEN": TOKEN}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    servers[:] = [process]
    assert process.stdout is not None, "it was asked for"
    line = process.stdout.readline()
    if not line:
        raise UsageError("leyden store did not start")
    return json.loads(line)["url"].replace("://", f"://{TOKEN}@")
