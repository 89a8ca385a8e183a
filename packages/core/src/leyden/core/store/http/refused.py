"""`Refused`: the reason why a store's server refuses a request, with its HTTP status."""

from collections.abc import Mapping


class Refused(Exception):
    """The request is answered with an HTTP status and a message of one line; `headers` are sent with it."""

    def __init__(self, status: int, line: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(line)
        self.status = status
        self.headers: dict[str, str] = dict(headers or {})


def retry_later(line: str, seconds: int) -> Refused:
    """Return the refusal of a request that may be sent again after `seconds`."""
    return Refused(429, line, {"retry-after": str(seconds)})
