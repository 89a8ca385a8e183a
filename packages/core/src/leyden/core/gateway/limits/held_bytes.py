"""`HeldBytes`: limits the bytes of request bodies that one attempt has in memory at once."""

from leyden.core.gateway.refusal import Refusal, retry_after


class HeldBytes:
    """Byte counts of all attempts, each at most `max_bytes`; a request counts from its first piece to its response."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[str, int] = {}

    def of(self, attempt_id: str) -> int:
        """Return how many bytes an attempt has in memory."""
        return self._held.get(attempt_id, 0)

    def request(self, attempt_id: str) -> "HeldRequest":
        """Return the byte count of one request, as a context manager that releases its bytes."""
        return HeldRequest(self._held, self._max_bytes, attempt_id)


class HeldRequest:
    """Byte count of one request, which is part of `held`; the end of its block releases the bytes."""

    __slots__ = ("_attempt_id", "_held", "_max_bytes", "_size")

    def __init__(self, held: dict[str, int], max_bytes: int, attempt_id: str) -> None:
        self._held, self._max_bytes, self._attempt_id, self._size = held, max_bytes, attempt_id, 0

    def __enter__(self) -> "HeldRequest":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._size:
            return
        left = self._held[self._attempt_id] - self._size
        if left:
            self._held[self._attempt_id] = left
        else:
            del self._held[self._attempt_id]

    def add(self, size: int) -> None:
        """Add `size` bytes; raises Refusal with status 429 if the attempt would have more than its limit in memory."""
        held = self._held.get(self._attempt_id, 0) + size
        if held > self._max_bytes:
            message = f"The unanswered requests of this attempt have more than {self._max_bytes} bytes."
            raise Refusal(429, message, type="requests", code="too_many_bytes", headers=retry_after(1))
        if size:
            self._held[self._attempt_id] = held
            self._size += size
