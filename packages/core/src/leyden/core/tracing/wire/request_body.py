"""Detection of a model's name in a request body, in any encoding and for any host."""

import json
import zlib
from typing import Any, cast

LARGEST = 16 * 1024 * 1024
"""Largest decompressed size, in bytes. The gateway accepts no more."""
_ANY_HEADER = 47
"""zlib's `wbits` for gzip or zlib format, detected from the data."""


def is_model_request(body: bytes | None, encoding: str) -> bool:
    """Return whether `body` names a model, or a stored prompt that contains one.

    `encoding` is the value of the `Content-Encoding` header. Returns True also for a body that can be read only once
    (None), and for a compressed body that cannot be read.
    """
    if body is None or b'"model"' in body:
        return True
    value, is_json = _json(body)
    if not is_json and encoding.strip().lower() not in ("", "identity"):
        content = _decompressed(body)
        if content is None or b'"model"' in content:
            return True
        value, is_json = _json(content)
    return isinstance(value, dict) and _names_model(cast("dict[str, Any]", value))


def _names_model(fields: dict[str, Any]) -> bool:
    prompt = fields.get("prompt")
    named = cast("dict[str, Any]", prompt).get("id") if isinstance(prompt, dict) else None
    return "model" in fields or (isinstance(named, str) and named.startswith("pmpt_"))


def _json(body: bytes) -> tuple[Any, bool]:
    """Return the value of `body` as JSON in any Unicode encoding, and whether it is JSON."""
    try:
        return json.loads(body), True
    except (ValueError, RecursionError):
        return None, False


def _decompressed(body: bytes) -> bytes | None:
    """Return all of `body` decompressed. None where its format is unknown, it is broken, or it is too long."""
    content = b""
    while body:
        reader = zlib.decompressobj(_ANY_HEADER)
        try:
            content += reader.decompress(body, LARGEST - len(content))
        except zlib.error:
            return None
        if not reader.eof or len(content) >= LARGEST:
            return None
        body = reader.unused_data
    return content
