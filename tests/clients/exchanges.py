"""The exchanges that every client makes: what it asks, what the model draws, and what the provider's API answers.

Knows nothing of clients or servers. Where each answer's form comes from is in `fixtures/README.md`.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

FIXTURES = Path(__file__).parent / "fixtures"
_TAG = re.compile(r"\[((?:chat|cancel|error|responses|messages)_\w+)\]")
DIALECTS = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}


class Draw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model draws for one choice."""

    text: str = ""
    piece: int | None = None
    """Bytes of each piece in which it is drawn; None: all at once."""
    pause: float = 0.0
    """Seconds between the pieces."""
    held: bool = False
    """Whether the last piece never comes: the client has to go away."""
    fails: str | None = None
    """Why the engine fails instead."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a first try, after which the client tries again."""

    status: int
    answer: dict[str, Any]


class Exchange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request and its answer; its name, in brackets, is part of the request's text, so that servers know it."""

    name: str = ""
    endpoint: str
    request: dict[str, Any]
    extra: dict[str, Any] = {}
    """Fields of the request that no client has a name for."""
    draws: list[Draw]
    """One for each choice, or for each try."""
    before: Failure | None = None
    """How the first try fails; None if it does not."""
    status: int
    headers: dict[str, str] = {}
    answer: dict[str, Any] | None = None
    events: list[dict[str, Any]] | None = None
    """The answer as a stream."""

    @property
    def dialect(self) -> str:
        """The API that it belongs to."""
        return DIALECTS[self.endpoint]


def load() -> dict[str, Exchange]:
    """All exchanges, by name."""
    found = sorted(FIXTURES.glob("*.json"))
    exchanges = [msgspec.json.decode(path.read_bytes(), type=Exchange) for path in found]
    return {
        path.stem: msgspec.structs.replace(exchange, name=path.stem)
        for path, exchange in zip(found, exchanges, strict=True)
    }


def name_in(text: str) -> str:
    """The name of the exchange that a request's text speaks of: the last one, as a conversation may quote others."""
    return _TAG.findall(text)[-1]
