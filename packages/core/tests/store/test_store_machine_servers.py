"""Any interleaving of operations on real PostgreSQL and Redis servers, by two stores at once and through HTTP."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from leyden.core.store.base import LightningStore
from leyden.core.store.client import HttpStore
from leyden.core.store.postgres import PostgresStore
from leyden.core.store.redis_store import RedisStore
from leyden.core.testing.postgres_server import PostgresServer
from leyden.core.testing.redis_server import RedisServer
from leyden.core.testing.store_machine import Clock, Opened, check_store
from leyden.core.testing.store_server import TOKEN, StoreServer

RECHECK = 0.1


@pytest.fixture
def on_postgres(postgres: PostgresServer, shared_database: str) -> Opened:
    @asynccontextmanager
    async def opened(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
        postgres.empty(shared_database)
        uri = postgres.uri_of(shared_database)
        stores = [await PostgresStore.open(uri, clock, RECHECK) for _ in range(2)]
        yield stores
        for store in stores:
            await store.close()

    return opened


@pytest.fixture
def on_redis(redis: RedisServer) -> Opened:
    @asynccontextmanager
    async def opened(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
        uri = redis.uri(uuid4().hex)
        stores = [await RedisStore.open(uri, clock, RECHECK) for _ in range(2)]
        yield stores
        for store in stores:
            await store.close()

    return opened


@pytest.fixture(params=["on_postgres", "on_redis"])
def opened(request: pytest.FixtureRequest) -> Opened:
    return request.getfixturevalue(request.param)


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
    check_store(opened, examples=5, steps=20)


def test_any_interleaving_through_two_servers(opened: Opened) -> None:
    with StoreServer() as server:
        check_store(through(server, opened), examples=3, steps=20)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_interleavings_of_operations(opened: Opened) -> None:
    check_store(opened, examples=25, steps=40)
