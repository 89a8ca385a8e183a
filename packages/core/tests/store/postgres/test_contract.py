"""The store contract on a real PostgreSQL server, and through the HTTP client over it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_contract import StoreContract


class OnPostgres(StoreContract):
    @pytest.fixture(autouse=True)
    def emptied(self, postgres: PostgresServer, shared_database: str) -> None:
        postgres.empty(shared_database)
        self.uri = postgres.uri_of(shared_database)


class TestPostgresStore(OnPostgres):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        store = await PostgresStore.open(self.uri, recheck=60)
        yield store
        await store.close()


@pytest.mark.long
class TestPostgresThroughHttp(OnPostgres):
    @pytest.fixture(autouse=True)
    def served(self, server: StoreServer) -> None:
        self.server = server

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
        behind = await PostgresStore.open(self.uri, recheck=60)
        store = HttpStore(self.server.add(behind), TOKEN)
        yield store
        await store.close()
        await behind.close()
