"""The store contract on the stores of this process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        store = MemoryStore()
        yield store
        await store.close()


class TestSqlStore(StoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        store = await SqlStore.open(folder / "store.db", recheck=60)
        yield store
        await store.close()
