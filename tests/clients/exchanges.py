"""The exchanges that every client makes: what it asks, what the model draws, and what OpenAI's API answers.

Knows nothing of clients or servers. Where each answer's form comes from is in `fixtures/README.md`.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

FIXTURES = Path(__file__).parent / "fixtures"
_TAG = re.compile(r"\[((?:chat|cancel|error|responses)_\w+)\]")


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


class Exchange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request and its answer; its name, in brackets, is part of the request's text, so that servers know it."""

    name: str = ""
    endpoint: str
    request: dict[str, Any]
    extra: dict[str, Any] = {}
    """Fields of the request that no client has a name for."""
    draws: list[Draw]
    """One for each choice."""
    status: int
    headers: dict[str, str] = {}
    answer: dict[str, Any] | None = None
    events: list[dict[str, Any]] | None = None
    """The answer as a stream."""


def load(*prefixes: str) -> dict[str, Exchange]:
    """The exchanges whose names begin with one of `prefixes`, by name."""
    found = [path for path in sorted(FIXTURES.glob("*.json")) if path.stem.startswith(prefixes)]
    exchanges = [msgspec.json.decode(path.read_bytes(), type=Exchange) for path in found]
    return {
        path.stem: msgspec.structs.replace(exchange, name=path.stem)
        for path, exchange in zip(found, exchanges, strict=True)
    }


def name_in(text: str) -> str:
    """The name of the exchange that a request's text speaks of: the last one, as a conversation may quote others."""
    return _TAG.findall(text)[-1]
