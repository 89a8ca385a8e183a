"""Known secrets: finds secret values in environment variables, URLs and arguments, and masks these values in texts.

These values are masked whatever they look like. See `shapes` for secrets that are recognized by their form.
"""

import os
import re
from functools import lru_cache
from urllib.parse import unquote

from leyden.core.masking.secret_variables import is_secret_name
from leyden.core.masking.shapes import MASK
from leyden.core.masking.writings import any_of, as_base64, as_written

SHORTEST = 8
"""Shortest value in characters that is masked; shorter values could be parts of ordinary words."""

_remembered: set[str] = set()
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")
_USERINFO = re.compile(r"[a-z][a-z0-9+.-]{0,30}://([^\s/?#]+)@", re.IGNORECASE)


def remember_secret(value: str) -> None:
    """Mask `value` in all texts from now on; values that look like ordinary words or paths are ignored."""
    if _is_maskable(value):
        _remembered.add(value)


def remember_words(words: list[str]) -> None:
    """Remember the passwords and tokens in the URLs of a command line's words."""
    for word in words:
        for secret in _secrets_of_urls(word):
            remember_secret(secret)


def known_secrets() -> frozenset[str]:
    """Return all known secrets.

    They are the remembered values, the values of environment variables with secret names, and the passwords of URLs in
    all environment variables.
    """
    found = (_secrets_of_variable(name, value) for name, value in os.environ.items())
    return frozenset(_remembered.union(*found))


def mask_known(text: str) -> str:
    """Return `text` with the known secrets masked, and also single lines of multi-line secrets.

    Escaped and base64-encoded forms of the secrets are masked too (see `writings`).
    """
    pattern = _pattern(known_secrets())
    return text if pattern is None else pattern.sub(MASK, text)


@lru_cache(maxsize=4096)
def _secrets_of_variable(name: str, value: str) -> tuple[str, ...]:
    secrets = [*([value] if is_secret_name(name) else []), *_secrets_of_urls(value)]
    return tuple(secret for secret in secrets if _is_maskable(secret))


def _secrets_of_urls(text: str) -> list[str]:
    parts = (userinfo.partition(":") for userinfo in _USERINFO.findall(text[:10_000]))
    return [unquote(password or user) for user, _, password in parts]


def _is_maskable(value: str) -> bool:
    """Whether a value can be masked: it is neither an ordinary word nor the path of a file."""
    if len(value) < SHORTEST or not (len(value) >= 2 * SHORTEST or any(character.isdigit() for character in value)):
        return False
    return not (value.startswith(("/", "~/", "./")) and "/" in value[1:]) or _is_random(value)


def _is_random(value: str) -> bool:
    """Whether a value that begins like a path is base64, as about one in a hundred AWS keys is."""
    mixed = all(re.search(kind, value) for kind in ("[A-Z]", "[a-z]", "[0-9]"))
    return mixed and _BASE64.fullmatch(value) is not None and not os.path.exists(value)


@lru_cache(maxsize=8)
def _pattern(values: frozenset[str]) -> "re.Pattern[str] | None":
    whole = values | {line.strip() for value in values for line in value.splitlines() if _is_maskable(line.strip())}
    longest_first = sorted(whole, key=len, reverse=True)
    return any_of([form for writing in (as_written, as_base64) for form in map(writing, longest_first)])
