"""Secrets that this process was given, which are masked by their value: of whatever shape they are."""

import json
import os
import re
from functools import lru_cache
from urllib.parse import quote, unquote

from leyden.core.masking.names import says_secret
from leyden.core.masking.shapes import MASK

SHORTEST = 8
"""Characters of a value that is masked: shorter ones are in ordinary words."""

_given: set[str] = set()
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
    """Return `text` without the known secrets, as they are or as URLs and JSON write them, nor any line of one."""
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
    return not (value.startswith(("/", "~/", "./")) and "/" in value[1:])


@lru_cache(maxsize=8)
def _pattern(values: frozenset[str]) -> "re.Pattern[str] | None":
    whole = values | {line.strip() for value in values for line in value.splitlines() if _can_be_told(line.strip())}
    forms = whole | {quote(value, safe="") for value in whole} | {json.dumps(value)[1:-1] for value in whole}
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None
