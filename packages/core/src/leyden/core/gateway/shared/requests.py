"""`SharedRequests`: which requests the other workers of a gateway answer now, and which answers did not arrive.

A retry may reach another worker than the request that it repeats. Requests are identified by their fingerprint
(`gateway.calls.retry_cache`). Each worker has a file with the fingerprints of its requests in progress, which the
others read only for a retry. An answer that did not arrive is an empty file with the fingerprint as its name.
"""

import asyncio
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

SLOTS = 4096
"""Requests in progress that are registered; above it, a retry that reaches another worker is a new call."""
FINGERPRINT_BYTES = 16
POLL_SECONDS = 0.02


class SharedRequests:
    """Requests of the worker `name` and of the others, in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._in_progress, self._undelivered = folder / "in-progress", folder / "undelivered"
        for each in (self._in_progress, self._undelivered):
            each.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._file: int | None = os.open(self._in_progress / name, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._file, bytes(SLOTS * FINGERPRINT_BYTES), 0)  # so that a full disk is noticed here
        self._free = list(range(SLOTS))

    @contextmanager
    def in_progress(self, fingerprint: str) -> Generator[None]:
        """Register a request in progress while the block runs."""
        if not self._free:
            yield
            return
        slot = self._free.pop()
        self._write(slot, bytes.fromhex(fingerprint))
        try:
            yield
        finally:
            self._write(slot, bytes(FINGERPRINT_BYTES))
            self._free.append(slot)

    async def wait_for_others(self, fingerprint: str) -> None:
        """Wait until no other worker has this request in progress."""
        while self._others_have(bytes.fromhex(fingerprint)):
            await asyncio.sleep(POLL_SECONDS)

    def mark_undelivered(self, fingerprint: str) -> None:
        """Record that the recorded response to this request did not reach its client."""
        try:
            (self._undelivered / fingerprint).touch()
        except OSError as error:
            logger.warning("a retry of a call may be answered as a new call: %s", error)

    def take_undelivered(self, fingerprint: str) -> bool:
        """Return whether the response to this request did not reach its client, and remove the mark."""
        try:
            (self._undelivered / fingerprint).unlink()
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Remove the worker's own file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        forget_requests(self._in_progress.parent, self._name)

    def _write(self, slot: int, content: bytes) -> None:
        if self._file is not None:
            os.pwrite(self._file, content, slot * FINGERPRINT_BYTES)

    def _others_have(self, fingerprint: bytes) -> bool:
        for path in self._in_progress.iterdir():
            with suppress(FileNotFoundError):  # its worker has ended
                if path.name != self._name and fingerprint in path.read_bytes():
                    return True
        return False


def forget_requests(folder: Path, name: str) -> None:
    """Remove the requests in progress of a worker that has ended."""
    (folder / "in-progress" / name).unlink(missing_ok=True)
