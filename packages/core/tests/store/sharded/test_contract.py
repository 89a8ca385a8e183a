"""The store contract on shards of every kind, mixed, and through the HTTP client."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.open import open_store
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.shard_lists import in_sqlite, write_list
from leyden.core.testing.store_contract import StoreContract


@asynccontextmanager
async def over(folder: Path, uris: dict[str, str]) -> AsyncGenerator[LightningStore]:
    """A store over shards."""
    store = await open_store(write_list(folder / "shards.yaml", uris))
    yield store
    await store.close()


class TestShardsInSqlite(StoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        async with over(folder, in_sqlite("a", "b", "c")) as store:
            yield store


@pytest.mark.long
class TestOneShard(StoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        async with over(folder, in_sqlite("a")) as store:
            yield store


@pytest.mark.long
class TestShardsThroughHttp(StoreContract):
    @pytest.fixture(autouse=True)
    def served(self, server: StoreServer) -> None:
        self.server = server

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        async with over(folder, in_sqlite("a", "b")) as behind:
            store = HttpStore(self.server.add(behind), TOKEN)
            yield store
            await store.close()


@pytest.mark.integration
class TestShardsInRedisAndSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def running(self, redis: RedisServer) -> None:
        self.redis = redis

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        uris = {name: self.redis.uri(uuid4().hex) for name in "ab"}
        async with over(folder, uris | in_sqlite("c")) as store:
            yield store


@pytest.mark.integration
class TestShardsInPostgresAndRedis(StoreContract):
    @pytest.fixture(autouse=True)
    def running(self, postgres: PostgresServer, shared_database: str, second_database: str, redis: RedisServer) -> None:
        for name in (shared_database, second_database):
            postgres.empty(name)
        self.uris = {"a": postgres.uri_of(shared_database), "b": postgres.uri_of(second_database)}
        self.redis = redis

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        async with over(folder, self.uris | {"c": self.redis.uri(uuid4().hex)}) as store:
            yield store
