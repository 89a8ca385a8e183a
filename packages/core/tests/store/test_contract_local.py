"""The store contract on the stores of this process, and on views of one of their queues."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.queue_view import QueueView
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.store_contract import OneQueueContract, StoreContract


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


class TestViewOfMemoryStore(OneQueueContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        view = QueueView(MemoryStore(), "run-1")
        yield view
        await view.close()


class TestViewOfSqlStore(OneQueueContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        view = QueueView(await SqlStore.open(folder / "store.db", recheck=60), "run-1")
        yield view
        await view.close()
