"""`Listener`: notifies a store's waiting callers of the commits of other processes.

The script of a commit publishes its topics. Messages during a lost connection are missed, so all callers are woken
after a reconnect.
"""

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import RedisError

from leyden.core.store.common.notifier import Notifier
from leyden.core.store.redis.connection import RedisAddress, RedisConnection, RedisLink, closed_on_failure, packed

_PAUSE = 0.1
"""Seconds between two attempts to connect."""
_LEAVE_SECONDS = 2.0


class CommitNotice(msgspec.Struct, frozen=True, array_like=True):
    """A published message."""

    sender: str
    topics: list[str]
    """Topics to notify; empty in the message that a closing store sends to itself."""


_READ = msgspec.msgpack.Decoder(CommitNotice)


class Listener:
    """Listens on a thread of its own, which starts at once."""

    def __init__(
        self, address: RedisAddress, channel: str, name: str, notifier: Notifier, closing: threading.Event
    ) -> None:
        self._address, self._channel, self._name = address, channel, name
        self._notifier, self._closing = notifier, closing
        self._connection = self._subscribed()
        self._thread = threading.Thread(target=self._listen, name="leyden-store-listen", daemon=True)
        self._thread.start()

    def message(self, topics: Sequence[str]) -> bytes:
        """Return the message to publish."""
        return msgspec.msgpack.encode(CommitNotice(self._name, list(topics)))

    def stop(self, link: RedisLink) -> None:
        """Stop the thread; `closing` must be set before."""
        try:
            link.call_once("PUBLISH", self._channel, self.message([]))
        except (RedisError, OSError):
            link.drop()  # the thread detects the same failure
        self._thread.join(_LEAVE_SECONDS)

    def _subscribed(self) -> RedisConnection:
        connection = self._address.make()
        with closed_on_failure(connection.disconnect):
            connection.connect()
            connection.send_packed_command([packed(("SUBSCRIBE", self._channel))], check_health=False)
            connection.read_response()
        return connection

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                self._on_message(self._connection.read_response())
            except (RedisError, OSError):  # a long silence also counts as a lost connection
                self._connection.disconnect()
                self._reconnect()
        self._connection.disconnect()

    def _reconnect(self) -> None:
        while not self._closing.wait(_PAUSE):
            try:
                self._connection = self._subscribed()
            except (RedisError, OSError):
                continue
            self._notifier.notify_all()
            return

    def _on_message(self, answer: Any) -> None:
        notice = _READ.decode(answer[2])
        if notice.sender != self._name:
            self._notifier.notify(notice.topics)
