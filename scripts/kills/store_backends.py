"""The services that the store campaign kills, by name: each a real server with an empty store, and ways to kill it."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from leyden.core.testing.servers import postgres_server
from leyden.core.testing.servers.ports import free_port
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer

_STARTING_SECONDS = 60.0


class Backend(Protocol):
    """A server that runs inside its `with` block."""

    uri: str
    """Of an empty store."""

    @property
    def uris(self) -> Sequence[str]:
        """Of the same store, as writers open it in turn."""
        ...

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

    @property
    def uris(self) -> Sequence[str]:
        """The database's."""
        return [self.uri]

    def __enter__(self) -> "PostgresBackend":
        """Start, and create a database."""
        super().__enter__()
        self.uri = self.uri_of(self.create())
        return self


class RedisBackend:
    """A Redis that writes its file before it answers, and the system to the disk within a second."""

    def __init__(self) -> None:
        self._server = RedisServer()
        self.uri = ""
        self.kill, self.start = self._server.kill, self._server.start

    @property
    def uris(self) -> Sequence[str]:
        """The server's."""
        return [self.uri]

    def __enter__(self) -> "RedisBackend":
        """Start."""
        self._server.__enter__()
        self.uri = self._server.uri()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._server.__exit__(kind, error, trace)


class ServedBackend:
    """`leyden store` over a SQLite file: the process that serves is the one that is killed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="leyden-served-")
        self._token, self._port = secrets.token_hex(16), free_port()
        self.uri = self._served = f"http://{self._token}@127.0.0.1:{self._port}"
        self._file = f"sqlite:///{self._folder.name}/store.db"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uris(self) -> Sequence[str]:
        """The server's."""
        return [self.uri]

    def __enter__(self) -> "ServedBackend":
        """Start."""
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and remove the file."""
        self.kill()
        self._folder.cleanup()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        """Start, and return when it answers."""
        folder = Path(self._folder.name)
        command = [sys.executable, "-m", "leyden.core.cli", "store", "--uri", self._file]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                env={**os.environ, "LEYDEN_STORE_TOKEN": self._token},
                stdout=log,
                stderr=log,
            )
        give_up = time.monotonic() + _STARTING_SECONDS
        while not self._answers():
            if time.monotonic() > give_up or self._process.poll() is not None:
                raise RuntimeError(f"the store's server does not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


class SqliteBackend(ServedBackend):
    """A SQLite file that several processes write at once: its owner, which also serves it to others, is killed.

    Half of the writers write the file, half go through the owner, so that it dies in the middle of transactions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uri = self._file

    @property
    def uris(self) -> Sequence[str]:
        """The file's and its owner's."""
        return [self._file, self._served]


BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "postgresql": PostgresBackend,
    "redis": RedisBackend,
    "http": ServedBackend,
    "sqlite": SqliteBackend,
}
MISSING: Mapping[str, Callable[[], str | None]] = {
    "postgresql": postgres_server.missing,
    "redis": lambda: NO_REDIS if PROGRAM is None else None,
    "http": lambda: None,
    "sqlite": lambda: None,
}
"""By name: why there can be no such server here."""
