"""Decides whether a request's body names a model, however it is written and wherever it goes."""

import json
import zlib
from typing import Any, cast

LARGEST = 16 * 1024 * 1024
"""Bytes that are decompressed: what the gateway takes."""
_ANY_HEADER = 47
"""For zlib: gzip or zlib, as the data says."""


def asks_a_model(body: bytes | None, encoding: str) -> bool:
    """Whether `body`, compressed as `encoding` (a header's value) says, names a model or a prompt stored with one.

    One that can be read only once (None), or that is compressed and cannot be read, is taken to.
    """
    if body is None or b'"model"' in body:
        return True
    value, is_json = _json(body)
    if not is_json and encoding.strip().lower() not in ("", "identity"):
        content = _decompressed(body)
        if content is None or b'"model"' in content:
            return True
        value, is_json = _json(content)
    return isinstance(value, dict) and _names_one(cast("dict[str, Any]", value))


def _names_one(fields: dict[str, Any]) -> bool:
    prompt = fields.get("prompt")
    named = cast("dict[str, Any]", prompt).get("id") if isinstance(prompt, dict) else None
    return "model" in fields or (isinstance(named, str) and named.startswith("pmpt_"))


def _json(body: bytes) -> tuple[Any, bool]:
    """Return what `body` says as JSON in any of Unicode's encodings, and whether it is that."""
    try:
        return json.loads(body), True
    except (ValueError, RecursionError):
        return None, False


def _decompressed(body: bytes) -> bytes | None:
    """Return the whole of `body`; None where it is in a form unknown here, broken, or too long."""
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
