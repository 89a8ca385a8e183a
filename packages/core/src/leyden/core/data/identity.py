"""Attempt tokens: what proves to the gateway which attempt a model call belongs to.

A token is `rollout.attempt.signature`, each part URL-safe base64 without padding, so that it can stand in a header or
in a path. Whoever holds it speaks for its attempt, and can read the attempt's ids in it. Knows nothing of whether the
attempt is still open; the gateway asks the store.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode

KEY_BYTES = 32
SIGNATURE_BYTES = 18
"""144 bits of the HMAC: beyond guessing, and no padding in base64."""


def new_key() -> bytes:
    """A fresh random signing key; one per run, never stored."""
    return secrets.token_bytes(KEY_BYTES)


def fits_header(token: str) -> bool:
    """Whether a token that somebody has chosen can travel as a bearer token: printable ASCII without spaces."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def mint(key: bytes, rollout_id: str, attempt_id: str) -> str:
    """Token of one attempt. Raises ValueError when the key is empty: it would sign for anyone."""
    if not key:
        raise ValueError("an attempt token needs a signing key")
    body = f"{_encode(rollout_id.encode())}.{_encode(attempt_id.encode())}"
    return f"{body}.{_encode(_sign(key, body))}"


def verify(key: bytes, token: str) -> tuple[str, str] | None:
    """(rollout id, attempt id) of a token that `key` signed, else None; never raises for a malformed token."""
    body, dot, signature = token.rpartition(".")
    if not (key and dot and token.isascii()):
        return None
    if not hmac.compare_digest(signature.encode(), _encode(_sign(key, body)).encode()):
        return None
    return ids_in(token)


def ids_in(token: str) -> tuple[str, str] | None:
    """(rollout id, attempt id) that a token names, whoever has signed it; None for what is no token."""
    parts = token.split(".")
    try:
        return (_decode(parts[0]), _decode(parts[1])) if len(parts) == 3 else None
    except ValueError:  # of base64, and of UTF-8
        return None


def _sign(key: bytes, body: str) -> bytes:
    return hmac.digest(key, body.encode(), "sha256")[:SIGNATURE_BYTES]


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(part: str) -> str:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()
