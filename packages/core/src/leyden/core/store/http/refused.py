"""`Refused`: why a store's server does not answer a request. Knows nothing of how it is sent."""

from collections.abc import Mapping


class Refused(Exception):
    """The request is answered with an HTTP status and one line; `headers` are sent with it."""

    def __init__(self, status: int, line: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(line)
        self.status = status
        self.headers: dict[str, str] = dict(headers or {})


def come_again(line: str, seconds: int) -> Refused:
    """Refusal of a request that would be taken later; `seconds` is when."""
    return Refused(429, line, {"retry-after": str(seconds)})
