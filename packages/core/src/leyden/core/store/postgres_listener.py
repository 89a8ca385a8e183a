"""`Listener`: hears what other processes tell on PostgreSQL's channel, over a connection and a thread of its own.

Connects again as long as it takes. Knows nothing of what is told.
"""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

_PAUSE = 0.2
"""Seconds before it connects again."""


class Listener:
    """`heard` is given every payload; `missed` is called when some may have been lost: whenever it has connected."""

    def __init__(
        self,
        connect: "Callable[[], psycopg.Connection[Any]]",
        channel: str,
        heard: Callable[[str], None],
        missed: Callable[[], None],
    ) -> None:
        self._connect, self._channel = connect, channel
        self._heard, self._missed = heard, missed
        self._stopping = threading.Event()
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="leyden-store-listen", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when it has."""
        self._stopping.set()
        self._ours.send(b"x")
        self._thread.join()
        self._ours.close()
        self._theirs.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(psycopg.Error), self._connect() as connection:
                connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))
                self._missed()
                self._listen(connection)
            self._stopping.wait(_PAUSE)

    def _listen(self, connection: "psycopg.Connection[Any]") -> None:
        while True:
            readable, _, _ = select.select([connection.fileno(), self._theirs], [], [])
            if self._theirs in readable:
                return
            connection.pgconn.consume_input()
            while (told := connection.pgconn.notifies()) is not None:
                self._heard(told.extra.decode())
