"""Databases of shards."""

import pytest

from leyden.core.testing.servers.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def second_database(postgres: PostgresServer) -> str:
    """The name of another database than `shared_database`."""
    return postgres.create()
