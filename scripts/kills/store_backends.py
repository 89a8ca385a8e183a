"""The services that the store campaign kills, by name: each a real server with an empty store, and ways to kill it."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from leyden.core.testing import postgres_server
from leyden.core.testing.postgres_server import PostgresServer


class Backend(Protocol):
    """A server that runs inside its `with` block."""

    uri: str
    """Of an empty store."""

    def __enter__(self) -> "Backend": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def kill(self) -> None:
        """`kill -9` everything of it."""
        ...

    def start(self) -> None:
        """Start it again, and return when it answers."""
        ...


class PostgresBackend(PostgresServer):
    """A PostgreSQL server that waits for its disk."""

    def __init__(self) -> None:
        super().__init__(durable=True)
        self.uri = ""

    def __enter__(self) -> "PostgresBackend":
        """Start, and create a database."""
        super().__enter__()
        self.uri = self.uri_of(self.create())
        return self


BACKENDS: Mapping[str, Callable[[], Backend]] = {"postgresql": PostgresBackend}
MISSING: Mapping[str, Callable[[], str | None]] = {"postgresql": postgres_server.missing}
"""By name: why there can be no such server here."""
