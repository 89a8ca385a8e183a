"""The store contract through the HTTP client, over each store of this process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_contract import StoreContract


class ThroughHttp(StoreContract):
    @pytest.fixture(autouse=True)
    def served(self, server: StoreServer) -> None:
        self.server = server

    async def open_behind(self, folder: Path) -> LightningStore:
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        behind = await self.open_behind(folder)
        store = HttpStore(self.server.add(behind), TOKEN)
        yield store
        await store.close()
        await behind.close()


class TestMemoryThroughHttp(ThroughHttp):
    async def open_behind(self, folder: Path) -> LightningStore:
        return MemoryStore()


@pytest.mark.long
class TestSqlThroughHttp(ThroughHttp):
    async def open_behind(self, folder: Path) -> LightningStore:
        return await SqlStore.open(folder / "store.db", recheck=60)
