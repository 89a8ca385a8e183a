"""Attempt tokens: signed tokens that prove to the gateway which attempt a model call belongs to.

A token is `rollout.attempt.signature`. Each part is URL-safe base64 without padding, so the token fits in a header or
in a path. A client that holds the token may act for its attempt, and can read the attempt's ids in it. A valid token
does not mean that the attempt is still open; the gateway asks the store for that.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache

KEY_BYTES = 32
SIGNATURE_BYTES = 18
"""144 bits of the HMAC: too many to guess, and a length for which base64 needs no padding."""
REMEMBERED = 4096
"""Number of valid tokens that are remembered: an attempt sends its token with every call."""


def new_key() -> bytes:
    """Return a random signing key. Each run has one key, which is never stored."""
    return secrets.token_bytes(KEY_BYTES)


def fits_header(token: str) -> bool:
    """Whether a token of the user's choice is valid as a bearer token: printable ASCII without spaces."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def mint(key: bytes, rollout_id: str, attempt_id: str) -> str:
    """Return the token of one attempt. Raises ValueError for an empty key, whose signature anyone could compute."""
    if not key:
        raise ValueError("an attempt token needs a signing key")
    body = f"{_encode(rollout_id.encode())}.{_encode(attempt_id.encode())}"
    return f"{body}.{_encode(_sign(key, body))}"


def verify(key: bytes, token: str) -> tuple[str, str] | None:
    """Return (rollout id, attempt id) of a token that `key` signed, else None. Malformed tokens never raise."""
    try:
        return _verified(key, token)
    except ValueError:
        return None


def ids_in(token: str) -> tuple[str, str] | None:
    """Return (rollout id, attempt id) from a token without a check of its signature; None where it is malformed."""
    parts = token.split(".")
    try:
        return (_decode(parts[0]), _decode(parts[1])) if len(parts) == 3 else None
    except ValueError:  # raised by base64 and by UTF-8 decoding
        return None


@lru_cache(REMEMBERED)
def _verified(key: bytes, token: str) -> tuple[str, str]:
    """Return the ids in a token; raises ValueError if it is not valid, so that only valid tokens are remembered."""
    body, dot, signature = token.rpartition(".")
    if not (key and dot and token.isascii()):
        raise ValueError("the token is malformed")
    if not hmac.compare_digest(signature.encode(), _encode(_sign(key, body)).encode()):
        raise ValueError("the key did not sign the token")
    ids = ids_in(token)
    if ids is None:
        raise ValueError("the token names no attempt")
    return ids


def _sign(key: bytes, body: str) -> bytes:
    return hmac.digest(key, body.encode(), "sha256")[:SIGNATURE_BYTES]


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(part: str) -> str:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()
