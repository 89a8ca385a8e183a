"""`SpanSender`: sends the spans of one captured run to the gateway in batches, in the background.

A long run therefore keeps few spans in memory, and a process that dies loses only spans after the last batch.
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
"""A batch is sent when `BATCH` spans wait, or when a span arrives and the oldest one is this many seconds old."""
LIMIT = 10_000
"""Most spans that wait while the gateway cannot be reached. Beyond it the oldest are dropped and counted."""
BYTES = 4 << 20
"""Largest size of one message, unless a single span is larger."""

Send = Callable[[bytes], None]
"""Sends a packed `CaptureSpans`. Raises `SpansRefused` where a retry cannot succeed."""


class SpansRefused(Exception):
    """The gateway will never accept these spans. The message is one line."""


class SpanSender:
    """Sends the spans in `waiting` and removes those that were sent. Other code may append to `waiting`."""

    def __init__(self, waiting: list[Span], send: Send) -> None:
        self._waiting, self._send = waiting, send
        self._lock = Lock()
        self._oldest: float | None = None
        self._process = os.getpid()
        self._lost = 0
        self._sending = False

    def keep(self, span: Span) -> None:
        """Queue a span that has ended. Starts a batch in a thread when one is due."""
        if os.getpid() != self._process:  # a fork inherited spans that the parent sends
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
        """Send all waiting spans, and return the number of lost ones. Blocks until sending has ended."""
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
        """Send one message. Returns whether a further one can be tried."""
        spans: list[Span] = []
        try:
            spans = self._fitting()
            if not spans:
                return bool(self._waiting)
            self._send(msgspec.msgpack.encode(CaptureSpans(spans=spans)))
        except SpansRefused as error:
            log.warning("%d spans are not recorded: %s", len(spans), error)
            self._lost += len(spans)
        except Exception as error:  # broad: the agent continues whatever the gateway's error is
            excess = max(0, len(self._waiting) - LIMIT)
            self._lost += excess
            del self._waiting[:excess]
            log.debug("%d spans wait: %r", len(self._waiting), error)
            return False
        del self._waiting[: len(spans)]
        return True

    def _fitting(self) -> list[Span]:
        """Return the first waiting spans as plain data, as many as one message holds, but at least one.

        A span that can never be stored is dropped and counted.
        """
        fitting: list[Span] = []
        size = 0
        while len(fitting) < min(BATCH, len(self._waiting)):
            index = len(fitting)
            try:
                span, span_bytes = ready_now(self._waiting[index])
            except REFUSALS as error:
                log.warning("a span is not recorded: %s", error)
                self._lost += 1
                del self._waiting[index]
                continue
            self._waiting[index] = span
            size += span_bytes
            if fitting and size > BYTES:
                break
            fitting.append(span)
        return fitting
