"""Differences that are known, each with the reason why it stands. A test fails for one that is gone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A difference, as a pattern of what `differences` says."""

    difference: str
    why: str
    exchange: str = ".*"
    """Pattern of the names of the exchanges it is found in."""
    client: str = "curl"
    """One that sees it."""

    def covers(self, exchange: str, difference: str) -> bool:
        """Whether it is this difference."""
        return bool(re.fullmatch(self.exchange, exchange) and re.search(self.difference, difference))


KNOWN: tuple[Known, ...] = (
    Known(
        difference=r"error\.organization is None",
        why="an attempt belongs to no organization, so the gateway sends no header that names one",
        client="openai028",
    ),
    Known(
        difference=r"headers names x-request-id",
        why="the gateway sends its own id of a request in every API, beside the header that Anthropic's clients read",
        exchange="messages_.*",
    ),
)


def unknown(exchange: str, found: Iterable[str]) -> list[str]:
    """Those of the differences found that nobody knows of."""
    return [line for line in found if not any(known.covers(exchange, line) for known in KNOWN)]
