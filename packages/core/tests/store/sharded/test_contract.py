"""The store contract on shards: SQLite files, alone and several."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from store.sharded.lists import in_sqlite, write_list

from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.store_contract import StoreContract


class TestShardsInSqlite(StoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        store = await open_store(write_list(folder / "shards.yaml", in_sqlite("a", "b", "c")))
        yield store
        await store.close()


@pytest.mark.long
class TestOneShard(StoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        store = await open_store(write_list(folder / "shards.yaml", in_sqlite("a")))
        yield store
        await store.close()
