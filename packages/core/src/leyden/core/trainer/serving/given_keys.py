"""Keys that were given in Python: kept in the memory of this process, by the names of the variables they stand for."""

import os
from collections.abc import Mapping

from leyden.core.masking import remember_secret

_GIVEN: dict[str, str] = {}


def give_keys(keys: Mapping[str, str]) -> None:
    """Keep the keys for the models that this process calls."""
    for key in keys.values():
        remember_secret(key)
    _GIVEN.update(keys)


def find_key(variable: str) -> str | None:
    """Return the key that was given for `variable`, or the value of the environment variable; None without one."""
    return _GIVEN.get(variable) or os.environ.get(variable) or None
