"""Servers that several files' tests share."""

from collections.abc import Generator

import pytest

from leyden.core.testing.servers import postgres_server
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer
from leyden.core.testing.servers.store_server import StoreServer


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """A PostgreSQL server that does not wait for the disk; skips the test where there is none."""
    if (reason := postgres_server.missing()) is not None:
        pytest.skip(reason)
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_database(postgres: PostgresServer) -> str:
    """The name of a database that is made once, and emptied for every test that uses it."""
    return postgres.create()


@pytest.fixture(scope="session")
def redis() -> Generator[RedisServer]:
    """A Redis server; skips the test where there is none."""
    if PROGRAM is None:
        pytest.skip(NO_REDIS)
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Generator[StoreServer]:
    """A server to which stores can be added."""
    with StoreServer() as server:
        yield server
