"""`Listener`: receives notifications of other processes on PostgreSQL's channel, on a thread with its own connection.

It reconnects until it is stopped.
"""

import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from leyden.core.store.common.listening import ListeningThread

_PAUSE = 0.2
"""Seconds before it reconnects."""


class Listener(ListeningThread):
    """Calls `on_message` with every payload, and `on_connect` after every connect.

    Notifications may have been lost before a connect.
    """

    def __init__(
        self,
        connect: "Callable[[], psycopg.Connection[Any]]",
        channel: str,
        on_message: Callable[[str], None],
        on_connect: Callable[[], None],
    ) -> None:
        self._connect, self._channel = connect, channel
        self._on_message, self._on_connect = on_message, on_connect
        super().__init__()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(psycopg.Error), self._connect() as connection:
                connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))
                self._on_connect()
                self._listen(connection)
            self._stopping.wait(_PAUSE)

    def _listen(self, connection: "psycopg.Connection[Any]") -> None:
        while True:
            readable, _, _ = select.select([connection.fileno(), self._stop_receiver], [], [])
            if self._stop_receiver in readable:
                return
            connection.pgconn.consume_input()
            while (notification := connection.pgconn.notifies()) is not None:
                self._on_message(notification.extra.decode())
