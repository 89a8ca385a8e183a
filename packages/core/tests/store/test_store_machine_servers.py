"""Any sequence of operations on real PostgreSQL and Redis servers, by two stores at once and through HTTP."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.store.redis.store import RedisStore
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_machine import Clock, Opened, check_store

RECHECK = 0.1

Open = Callable[[Clock], Awaitable[LightningStore]]


def in_postgres(request: pytest.FixtureRequest) -> Callable[[], Open]:
    postgres: PostgresServer = request.getfixturevalue("postgres")
    name: str = request.getfixturevalue("shared_database")

    def begin() -> Open:
        postgres.empty(name)
        return lambda clock: PostgresStore.open(postgres.uri_of(name), clock, RECHECK)

    return begin


def in_redis(request: pytest.FixtureRequest) -> Callable[[], Open]:
    redis: RedisServer = request.getfixturevalue("redis")

    def begin() -> Open:
        uri = redis.uri(uuid4().hex)
        return lambda clock: RedisStore.open(uri, clock, RECHECK)

    return begin


@pytest.fixture(params=[in_postgres, in_redis])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Two stores over one database; an example of Hypothesis begins with an empty one."""
    begin: Callable[[], Open] = request.param(request)  # here, so that a test without a server is skipped at once

    @asynccontextmanager
    async def both(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
        open_store = begin()
        stores = [await open_store(clock) for _ in range(2)]
        yield stores
        for store in stores:
            await store.close()

    return both


def through(server: StoreServer, opened: Opened) -> Opened:
    """A client of a server for each of the stores: two servers over one database."""

    @asynccontextmanager
    async def served(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
        async with opened(folder, clock) as behind:
            clients = [HttpStore(server.add(store), TOKEN) for store in behind]
            yield clients
            for client in clients:
                await client.close()

    return served


def test_any_interleaving_of_operations(opened: Opened) -> None:
    check_store(opened, examples=5, steps=20, passing_over=True)


def test_any_interleaving_through_two_servers(opened: Opened) -> None:
    with StoreServer() as server:
        check_store(through(server, opened), examples=3, steps=20, passing_over=True)


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_many_interleavings_of_operations(opened: Opened) -> None:
    check_store(opened, examples=15, steps=40, passing_over=True)
