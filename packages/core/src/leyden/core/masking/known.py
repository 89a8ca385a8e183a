"""Secrets that this process was given, which are masked by their value: of whatever shape they are."""

import os
import re
from functools import lru_cache
from urllib.parse import unquote

from leyden.core.masking.names import says_secret
from leyden.core.masking.shapes import MASK
from leyden.core.masking.writings import any_of, as_base64, as_written

SHORTEST = 8
"""Characters of a value that is masked: shorter ones are in ordinary words."""

_given: set[str] = set()
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")
_USERINFO = re.compile(r"[a-z][a-z0-9+.-]{0,30}://([^\s/?#]+)@", re.IGNORECASE)


def remember_secret(value: str) -> None:
    """Mask `value` from here on, wherever it turns up."""
    if _can_be_told(value):
        _given.add(value)


def remember_words(words: list[str]) -> None:
    """Remember the passwords and tokens of the URLs on a command line."""
    for word in words:
        for secret in _secrets_of_urls(word):
            remember_secret(secret)


def known_secrets() -> frozenset[str]:
    """Return what was remembered, the variables that are named as secrets, and passwords of URLs in others."""
    found = (_secrets_of_variable(name, value) for name, value in os.environ.items())
    return frozenset(_given.union(*found))


def mask_known(text: str) -> str:
    """Return `text` without the known secrets, in whichever of the usual ways they are written, nor any line of one."""
    pattern = _pattern(known_secrets())
    return text if pattern is None else pattern.sub(MASK, text)


@lru_cache(maxsize=4096)
def _secrets_of_variable(name: str, value: str) -> tuple[str, ...]:
    secrets = [*([value] if says_secret(name) else []), *_secrets_of_urls(value)]
    return tuple(secret for secret in secrets if _can_be_told(secret))


def _secrets_of_urls(text: str) -> list[str]:
    parts = (userinfo.partition(":") for userinfo in _USERINFO.findall(text[:10_000]))
    return [unquote(password or user) for user, _, password in parts]


def _can_be_told(value: str) -> bool:
    """Whether a value is no ordinary word, and no path of a file that holds the secret."""
    if len(value) < SHORTEST or not (len(value) >= 2 * SHORTEST or any(one.isdigit() for one in value)):
        return False
    return not (value.startswith(("/", "~/", "./")) and "/" in value[1:]) or _is_random(value)


def _is_random(value: str) -> bool:
    """Whether what begins like a path is base64, as one in a hundred of AWS's keys is."""
    mixed = all(re.search(kind, value) for kind in ("[A-Z]", "[a-z]", "[0-9]"))
    return mixed and _BASE64.fullmatch(value) is not None and not os.path.exists(value)


@lru_cache(maxsize=8)
def _pattern(values: frozenset[str]) -> "re.Pattern[str] | None":
    whole = values | {line.strip() for value in values for line in value.splitlines() if _can_be_told(line.strip())}
    longest_first = sorted(whole, key=len, reverse=True)
    return any_of([form for writing in (as_written, as_base64) for form in map(writing, longest_first)])
