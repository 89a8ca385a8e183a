"""The store contract on Redis, directly and through the HTTP client."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.open import open_store
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_contract import StoreContract


class OnRedis(StoreContract):
    @pytest.fixture(autouse=True)
    def running(self, redis: RedisServer, server: StoreServer) -> None:
        self.redis, self.server = redis, server

    async def open_new(self) -> LightningStore:
        return await open_store(self.redis.uri(uuid4().hex))


class TestRedisStore(OnRedis):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        store = await self.open_new()
        yield store
        await store.close()


@pytest.mark.long
class TestRedisThroughHttp(OnRedis):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        behind = await self.open_new()
        store = HttpStore(self.server.add(behind), TOKEN)
        yield store
        await store.close()
        await behind.close()
