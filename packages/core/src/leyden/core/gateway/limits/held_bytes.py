"""`HeldBytes`: limits the bytes of request bodies that one attempt has in memory at once."""

from leyden.core.gateway.refusal import Refusal, retry_after


class HeldBytes:
    """Byte counts of all attempts, each at most `limit`; a request counts from its first piece until its response."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: dict[str, int] = {}

    def of(self, attempt_id: str) -> int:
        """Return how many bytes an attempt has in memory."""
        return self._held.get(attempt_id, 0)

    def request(self, attempt_id: str) -> "HeldRequest":
        """Return the byte count of one request, as a context manager that releases its bytes."""
        return HeldRequest(self, attempt_id)

    def change(self, attempt_id: str, by: int) -> None:
        """Change an attempt's count by `by` bytes, which may be negative."""
        held = self._held.get(attempt_id, 0) + by
        if held:
            self._held[attempt_id] = held
        else:
            self._held.pop(attempt_id, None)


class HeldRequest:
    """Byte count of one request; the end of its block releases the bytes."""

    __slots__ = ("_attempt_id", "_held_bytes", "_size")

    def __init__(self, held: HeldBytes, attempt_id: str) -> None:
        self._held_bytes, self._attempt_id, self._size = held, attempt_id, 0

    def __enter__(self) -> "HeldRequest":
        return self

    def __exit__(self, *_: object) -> None:
        self._held_bytes.change(self._attempt_id, -self._size)

    def add(self, size: int) -> None:
        """Add `size` bytes; raises Refusal with status 429 if the attempt would have more than its limit in memory."""
        if self._held_bytes.of(self._attempt_id) + size > self._held_bytes.limit:
            message = (
                f"The requests of this attempt that are not answered yet have more than {self._held_bytes.limit} bytes."
            )
            raise Refusal(429, message, type="requests", code="too_many_bytes", headers=retry_after(1))
        self._size += size
        self._held_bytes.change(self._attempt_id, size)
