"""Masks texts, JSON documents and log records."""

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from leyden.core.masking.known import mask_known
from leyden.core.masking.shapes import IN_PLAIN_TEXT, MASK, SHAPES
from leyden.core.masking.terminal import visible

_SECRET_NAME = re.compile(r"api[-_]?key|authorization|password|passwd|secret|access[-_]?token|credential|cookie", re.I)
_SUSPECT = re.compile(rf"{_SECRET_NAME.pattern}|headers", re.I)
_SEQUENCE = re.compile(r"((?:\x1b|\\x1b)\[[0-9;?]{0,20}[A-Za-z])")
"""A terminal's control sequence, as it is or as `visible` writes it."""
_HEADERS = frozenset({"headers", "extra_headers"})
"""Objects whose every text is masked: what a header is called says little of what it holds."""


def mask_text(text: str) -> str:
    """Return `text` without what looks like a secret, and without the secrets that this process was given.

    Ordinary text stays as it is, and what is masked once stays as it is too.
    """
    text = mask_known(text)
    if "\x1b" not in text and "\\x1b" not in text:
        return _without_shapes(text)
    pieces = _SEQUENCE.split(text)  # the letter that ends a sequence is no part of the word behind it
    return "".join(piece if at % 2 else _without_shapes(piece) for at, piece in enumerate(pieces))


def _without_shapes(text: str) -> str:
    folded = text.casefold()
    for shape in SHAPES if "\\" in text or "%" in text else IN_PLAIN_TEXT:
        if any(sign in folded for sign in shape.signs):
            text = shape.pattern.sub(shape.masked, text)
    return text


def mask_values(value: Any, mask: Callable[[str], str] = mask_text) -> Any:
    """Return built-in containers with every text in them masked; the keys of mappings are names, and stay."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list | tuple):
        return [mask_values(item, mask) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: mask_values(item, mask) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def mask_json(text: str) -> str:
    """Return a JSON document whose texts under names such as `api_key` are masked; others are as they were."""
    if not _SUSPECT.search(text):
        return text
    import msgspec  # the process that masks what agents print does without it

    return msgspec.json.encode(_masked(msgspec.json.decode(text), "")).decode()


class MaskingFilter(logging.Filter):
    """Masks what a logger says, error messages included, and control characters; add it to a logger or a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask `record`, and let it pass."""
        record.msg, record.args = visible(mask_text(record.getMessage())), None
        if record.exc_info and not record.exc_text:
            record.exc_text = visible(mask_text(logging.Formatter().formatException(record.exc_info)))
        return True


def mask_logs(*names: str) -> None:
    """Mask what these loggers say from here on; asking again changes nothing."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(known, MaskingFilter) for known in logger.filters):
            logger.addFilter(MaskingFilter())


class _MaskingFactory:
    """Makes the log records of `leyden`'s loggers masked, and leaves others as they are."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make, self._masking = make, MaskingFilter()

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(name, *args, **kwargs)
        if name == "leyden" or name.startswith("leyden."):
            with suppress(Exception):  # arguments that do not fit are for the handler to report
                self._masking.filter(record)
        return record


def mask_own_logs() -> None:
    """Mask what Leyden logs in this process, whichever handlers it goes to; asking again changes nothing."""
    known = logging.getLogRecordFactory()
    if not isinstance(known, _MaskingFactory):
        logging.setLogRecordFactory(_MaskingFactory(known))


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
