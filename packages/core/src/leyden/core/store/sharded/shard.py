"""`Shard`: one store of several, and whether it can be reached.

A shard that fails is tried again by a thread of its own until it answers. It stays one of the list meanwhile: calls
about its own rollouts fail with one line that names it, and calls about all shards leave it out and report that.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from leyden.core.errors import REFUSALS, StoreError, UsageError, first_line
from leyden.core.store.base import LightningStore
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.rows import Rows
from leyden.core.store.sharded.numbers import NUMBERS
from leyden.core.store.sharded.shard_list import ShardSpec, ShardState
from leyden.core.store.text import without_login

logger = logging.getLogger(__name__)

T = TypeVar("T")
OpenShard: TypeAlias = Callable[[str], Awaitable[LightningStore]]

_RETRY_SECONDS = 0.5
"""Pause between two tries to reach a shard that has failed."""
_PATIENCE = 10.0
"""Seconds after a failure for which calls about the shard's rollouts are still sent to it.

Its own client waits for the return of its server, such as after a restart. Later calls fail at once.
"""


class ShardUnreachable(StoreError):
    """A shard does not answer."""


class Shard:
    """A store, opened by a thread of its own; `on_return` is called when it can be reached (again)."""

    def __init__(self, spec: ShardSpec, uri: str, opening: OpenShard, on_return: Callable[[], None]) -> None:
        self.name, self.uri, self.address = spec.name, uri, without_login(uri)
        self.state: ShardState = spec.state
        self._opening, self._on_return = opening, on_return
        self._store: LocalStore | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._tried = threading.Event()
        """Set after the first try to open it."""
        self._problem: str | None = None
        """Why it cannot be reached; None where it can."""
        self._first_problem: Exception | None = None
        self._since = 0.0
        self._fail("it is still being opened")

    def __repr__(self) -> str:
        return f"Shard({self.name!r}, {self.address!r}, {self.state})"

    @property
    def is_down(self) -> bool:
        """Whether it has failed and not answered since."""
        return self._problem is not None

    @property
    def problem(self) -> str:
        """The line that says why it cannot be reached."""
        return f"shard {self.name} ({self.address}) cannot be reached: {self._problem or 'it did not answer in time'}"

    @property
    def store(self) -> LocalStore | None:
        """The store, once it was opened."""
        return self._store

    async def opened(self, seconds: float) -> Exception | None:
        """Wait for the first try to open it; return its error, or None where it succeeded or is still under way."""
        await asyncio.to_thread(self._tried.wait, seconds)
        return self._first_problem

    async def call(self, work: Callable[[LocalStore], Awaitable[T]]) -> T:
        """Do `work`, which is about what this shard holds. Raises ShardUnreachable where it does not answer."""
        store = self._store
        if store is None or (self._problem is not None and time.monotonic() > self._since + _PATIENCE):
            raise ShardUnreachable(self.problem)
        try:
            return await work(store)
        except REFUSALS:
            raise
        except StoreError as error:
            self._fail(first_line(error))
            raise ShardUnreachable(f"shard {self.name}: {error}") from error

    async def ask(self, work: Callable[[Rows], T], seconds: float | None) -> T:
        """Read for a call about all shards. Raises ShardUnreachable where it is down, or does not answer in time."""
        store = self._store
        if store is None or self._problem is not None:
            raise ShardUnreachable(self.problem)
        try:
            async with asyncio.timeout(seconds):
                return await self.call(lambda store: store.transact(work, write=False))
        except TimeoutError as error:
            self._fail(f"it did not answer within {seconds:g} seconds")
            raise ShardUnreachable(self.problem) from error

    def _fail(self, problem: str) -> None:
        """Note a failure, and start the thread that tries to reach the shard."""
        with self._lock:
            is_first, self._problem = self._problem is None, problem
            if not is_first or self._closed.is_set():
                return
            self._since = time.monotonic()
        threading.Thread(target=self._recover, name=f"leyden-shard-{self.name}", daemon=True).start()

    def _recover(self) -> None:
        is_reported = False
        while not self._closed.is_set():
            try:
                asyncio.run(self._reach())
            except Exception as error:  # any error counts as its absence, and it is tried again
                self._problem = first_line(error)
                if not self._tried.is_set():
                    self._first_problem = error
                if not is_reported:
                    is_reported = True
                    logger.warning("%s; what it holds is not available, and new rollouts go to others", self.problem)
                self._tried.set()
                self._closed.wait(_RETRY_SECONDS)
            else:
                with self._lock:
                    self._problem = self._first_problem = None
                self._tried.set()
                if is_reported:
                    away = time.monotonic() - self._since
                    logger.warning("shard %s can be reached again after %.1f seconds", self.name, away)
                self._on_return()
                return

    async def _reach(self) -> None:
        if self._store is None:
            opened = await self._opening(self.uri)
            if not isinstance(opened, LocalStore):
                await opened.close()
                raise UsageError(f"{self.address} cannot be a shard")
            opened.given_positions = NUMBERS
            self._store = opened
            if self._closed.is_set():
                await opened.close()
        await self._store.transact(lambda rows: rows.head("", 1), write=False)

    async def close(self) -> None:
        """Close the store; no thread tries to reach it any more."""
        self._closed.set()
        if self._store is not None:
            await self._store.close()
