"""`HeldBytes`: how much of the requests of one attempt is in memory at once. Knows nothing of HTTP."""

from leyden.core.gateway.refusal import Refusal, retry_after


class HeldBytes:
    """At most `most` bytes for each attempt, each request's from its first piece until it is answered."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[str, int] = {}

    def of(self, attempt_id: str) -> int:
        """Return how many an attempt holds."""
        return self._held.get(attempt_id, 0)

    def request(self, attempt_id: str) -> "HeldRequest":
        """Return one request's account, to be closed."""
        return HeldRequest(self, attempt_id)

    def change(self, attempt_id: str, by: int) -> None:
        """Add to what an attempt holds, or take from it."""
        held = self.of(attempt_id) + by
        if held:
            self._held[attempt_id] = held
        else:
            self._held.pop(attempt_id, None)


class HeldRequest:
    """What one request holds until the end of its block."""

    __slots__ = ("_all", "_attempt_id", "_size")

    def __init__(self, held: HeldBytes, attempt_id: str) -> None:
        self._all, self._attempt_id, self._size = held, attempt_id, 0

    def __enter__(self) -> "HeldRequest":
        return self

    def __exit__(self, *_: object) -> None:
        self._all.change(self._attempt_id, -self._size)

    def add(self, size: int) -> None:
        """Hold so many bytes more; raises Refusal with status 429 where the attempt holds too many."""
        if self._all.of(self._attempt_id) + size > self._all.most:
            message = f"The requests of this attempt that are not answered yet have more than {self._all.most} bytes."
            raise Refusal(429, message, type="requests", code="too_many_bytes", headers=retry_after(1))
        self._size += size
        self._all.change(self._attempt_id, size)
