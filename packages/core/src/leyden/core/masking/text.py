"""Masks texts, JSON documents and log records."""

import logging
import re
from typing import Any, cast

import msgspec

MASK = "***"

_SECRET_NAME = re.compile(r"api[-_]?key|authorization|password|passwd|secret|access[-_]?token|credential|cookie", re.I)
_SUSPECT = re.compile(rf"{_SECRET_NAME.pattern}|headers", re.I)
_HEADERS = frozenset({"headers", "extra_headers"})
"""Objects whose every text is masked: what a header is called says little of what it holds."""
_IN_TEXT = (
    (re.compile(r"(/a/)[\w.~-]{20,}"), rf"\1{MASK}"),  # an attempt token in a path
    (re.compile(r"(\bBearer\s+)[\w.~+/=-]+", re.I), rf"\1{MASK}"),
    (re.compile(r"\b((?:sk|pk|hf|gsk|xai)[-_]|AIza)[\w-]{16,}"), rf"\1{MASK}"),  # as providers make their keys
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.I), rf"\1{MASK}@"),  # a password or a token in a URL
)


def mask_text(text: str) -> str:
    """Return `text` without attempt tokens, bearer tokens, keys as providers make them, and who a URL is opened as."""
    for pattern, masked in _IN_TEXT:
        text = pattern.sub(masked, text)
    return text


def mask_json(text: str) -> str:
    """Return a JSON document whose texts under names such as `api_key` are masked; others are as they were."""
    if not _SUSPECT.search(text):
        return text
    return msgspec.json.encode(_masked(msgspec.json.decode(text), "")).decode()


class MaskingFilter(logging.Filter):
    """Masks what a logger says, error messages included; add it to the logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask `record`, and let it pass."""
        record.msg, record.args = mask_text(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = mask_text(logging.Formatter().formatException(record.exc_info))
        return True


def mask_logs(*names: str) -> None:
    """Mask what these loggers say from here on; asking again changes nothing."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(known, MaskingFilter) for known in logger.filters):
            logger.addFilter(MaskingFilter())


def _masked(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return MASK if _SECRET_NAME.search(name) else value
    if isinstance(value, list):
        return [_masked(item, name) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if name == "properties":  # of a schema: its names are parameters, its values say what they are
        return {key: _masked(item, "") for key, item in fields.items()}
    if name in _HEADERS:
        return {key: MASK if isinstance(item, str) else _masked(item, key) for key, item in fields.items()}
    return {key: _masked(item, key) for key, item in fields.items()}
