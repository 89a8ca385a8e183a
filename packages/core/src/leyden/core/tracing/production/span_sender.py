"""`SpanSender`: what one captured run recorded, on its way to the gateway in batches, in the background.

So a long run holds little of it, and a process that dies loses what the last batch did not hold.
"""

import logging
import os
import time
from collections.abc import Callable
from threading import Lock, Thread

import msgspec

from leyden.core.data.production import CaptureSpans
from leyden.core.data.span import Span
from leyden.core.errors import REFUSALS
from leyden.core.store.common.span_entry import ready_now

log = logging.getLogger("leyden.production")

BATCH = 64
SECONDS = 2.0
"""A batch goes when there are so many spans, or when its first one is so old at the next."""
LIMIT = 10_000
"""While the gateway cannot be reached, spans wait; beyond this many the oldest are lost, and counted."""
BYTES = 4 << 20
"""Of one message, unless one span is larger."""

Send = Callable[[bytes], None]
"""Takes a packed `CaptureSpans`. Raises `SpansRefused` where sending it again would change nothing."""


class SpansRefused(Exception):
    """The gateway will never take these spans; one line."""


class SpanSender:
    """Sends the spans in `waiting`, to which anyone may append, and takes those that were sent out of it."""

    def __init__(self, waiting: list[Span], send: Send) -> None:
        self._waiting, self._send = waiting, send
        self._lock = Lock()
        self._oldest: float | None = None
        self._process = os.getpid()
        self._lost = 0
        self._sending = False

    def keep(self, span: Span) -> None:
        """Have a span that has ended sent."""
        if os.getpid() != self._process:  # a fork took along what its parent sends
            self._waiting.clear()
            self._process, self._lock, self._sending = os.getpid(), Lock(), False
        self._waiting.append(span)
        now = time.monotonic()
        self._oldest = now if self._oldest is None else self._oldest
        if self._sending or (len(self._waiting) < BATCH and now - self._oldest < SECONDS):
            return
        self._sending = True
        Thread(target=self._send_batch, name="leyden spans", daemon=True).start()

    def finish(self) -> int:
        """Send all that waits, and return how many spans are lost; blocks for as long as sending takes."""
        with self._lock:
            while self._waiting and self._send_some():
                continue
            return self._lost + len(self._waiting)

    def _send_batch(self) -> None:
        with self._lock:
            self._send_some()
            self._oldest = time.monotonic() if self._waiting else None
            self._sending = False

    def _send_some(self) -> bool:
        """Send one message; returns whether the next one can be tried."""
        spans: list[Span] = []
        try:
            spans = self._fitting()
            if not spans:
                return bool(self._waiting)
            self._send(msgspec.msgpack.encode(CaptureSpans(spans=spans)))
        except SpansRefused as error:
            log.warning("%d spans are not recorded: %s", len(spans), error)
            self._lost += len(spans)
        except Exception as error:  # whatever keeps the gateway from taking them, the agent runs on
            beyond = max(0, len(self._waiting) - LIMIT)
            self._lost += beyond
            del self._waiting[:beyond]
            log.debug("%d spans wait: %r", len(self._waiting), error)
            return False
        del self._waiting[: len(spans)]
        return True

    def _fitting(self) -> list[Span]:
        """Return the first that wait, of plain data and as many as one message holds; at least one.

        One that can never be stored is lost, and counted.
        """
        fitting: list[Span] = []
        size = 0
        while len(fitting) < min(BATCH, len(self._waiting)):
            place = len(fitting)
            try:
                span, bytes_of_it = ready_now(self._waiting[place])
            except REFUSALS as error:
                log.warning("a span is not recorded: %s", error)
                self._lost += 1
                del self._waiting[place]
                continue
            self._waiting[place] = span
            size += bytes_of_it
            if fitting and size > BYTES:
                break
            fitting.append(span)
        return fitting
