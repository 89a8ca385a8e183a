"""Text masking: masks secrets in texts, containers, JSON documents and log records."""

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from leyden.core.masking.known import mask_known
from leyden.core.masking.shapes import MASK, SHAPES, shapes_in_plain_text
from leyden.core.masking.terminal import visible

_SECRET_NAME = re.compile(r"api[-_]?key|authorization|password|passwd|secret|access[-_]?token|credential|cookie", re.I)
_SUSPECT = re.compile(rf"{_SECRET_NAME.pattern}|headers", re.I)
_SEQUENCE = re.compile(r"((?:\x1b|\\x1b)\[[0-9;?]{0,20}[A-Za-z])")
"""Control sequence of a terminal, raw or as `visible` escapes it."""
_HEADERS = frozenset({"headers", "extra_headers"})
"""Names of objects in which all texts are masked, because a header's name does not show whether it is secret."""


def mask_text(text: str) -> str:
    """Return `text` with known secrets, and texts that look like secrets, replaced by `MASK`.

    Ordinary text stays unchanged. A second call does not change the result.
    """
    text = mask_known(text)
    if "\x1b" not in text and "\\x1b" not in text:
        return _without_shapes(text)
    pieces = _SEQUENCE.split(text)  # the letter at the end of a sequence does not belong to the next word
    return "".join(piece if at % 2 else _without_shapes(piece) for at, piece in enumerate(pieces))


def printable(text: str) -> str:
    """Return `text` without secrets, its control characters escaped: for a terminal, a log or a record."""
    return visible(mask_text(text))


def _without_shapes(text: str) -> str:
    folded = text.casefold()
    for shape in SHAPES if "\\" in text or "%" in text else shapes_in_plain_text():
        if any(sign in folded for sign in shape.signs):
            text = shape.pattern.sub(shape.masked, text)
    return text


def mask_values(value: Any, mask: Callable[[str], str] = mask_text) -> Any:
    """Return lists, tuples and dictionaries with every text in them masked; keys of dictionaries stay unchanged.

    Tuples become lists. Other values are returned unchanged.
    """
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list | tuple):
        return [mask_values(item, mask) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: mask_values(item, mask) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def mask_json(text: str) -> str:
    """Return a JSON document with the texts under names such as `api_key` masked; other texts stay unchanged.

    Raises msgspec.DecodeError for invalid JSON with such a name.
    """
    if not _SUSPECT.search(text):
        return text
    import msgspec  # imported here, because the log filter process does not need it

    return msgspec.json.encode(_masked(msgspec.json.decode(text), "")).decode()


class MaskingFilter(logging.Filter):
    """Logging filter that masks secrets and escapes control characters in messages and tracebacks.

    Add it to a logger or a handler.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask `record` in place; return True."""
        record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = printable(logging.Formatter().formatException(record.exc_info))
        return True


def mask_logs(*names: str) -> None:
    """Mask the records of the loggers with these names from now on; repeated calls change nothing."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(known, MaskingFilter) for known in logger.filters):
            logger.addFilter(MaskingFilter())


class _MaskingFactory:
    """Log record factory that masks the records of Leyden's loggers and of `others`, and of all loggers below them."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make, self._masking = make, MaskingFilter()
        self.others: frozenset[str] = frozenset()

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(name, *args, **kwargs)
        root = name.partition(".")[0]
        if root == "leyden" or root in self.others:
            with suppress(Exception):  # the handler reports arguments that do not match the message
                self._masking.filter(record)
        return record


def mask_own_logs(*others: str) -> None:
    """Mask the records of Leyden's loggers in this process, for all handlers; repeated calls change nothing.

    `others` are names of top-level loggers of other libraries, whose records are masked from now on, too.
    """
    known = logging.getLogRecordFactory()
    if not isinstance(known, _MaskingFactory):
        known = _MaskingFactory(known)
        logging.setLogRecordFactory(known)
    known.others |= frozenset(others)


def _masked(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return MASK if _SECRET_NAME.search(name) else value
    if isinstance(value, list):
        return [_masked(item, name) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if name == "properties":  # in a JSON schema: the keys are parameter names, the values are descriptions
        return {key: _masked(item, "") for key, item in fields.items()}
    if name in _HEADERS:
        return {key: MASK if isinstance(item, str) else _masked(item, key) for key, item in fields.items()}
    return {key: _masked(item, key) for key, item in fields.items()}
