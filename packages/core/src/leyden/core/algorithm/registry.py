"""The algorithms by name, and how to make one from its name and its configuration.

Installed packages add theirs under the entry-point group `leyden.algorithm`; a built-in name cannot be taken over.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

import msgspec

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.dpo import DPO
from leyden.core.algorithm.lightning_rl import LightningRL
from leyden.core.algorithm.sft import SFT
from leyden.core.algorithm.side_by_side import SideBySide
from leyden.core.algorithm.stages import Stages
from leyden.core.algorithm.verl.algorithm import VERL
from leyden.core.errors import UsageError
from leyden.core.runner.user_code.loading import load_object

ALGORITHMS: dict[str, type[Algorithm]] = {kind.name: kind for kind in (LightningRL, SFT, DPO, Stages, SideBySide, VERL)}
GROUP = "leyden.algorithm"


def make_algorithm(name: str, config: Mapping[str, Any]) -> Algorithm:
    """The algorithm called `name`, or named by an import string, with its typed configuration.

    A key with dots reaches into an option that is a mapping: `credit.gamma` changes the `gamma` of what `credit` is
    before it, so that a command line can override a part of what a file says. Raises UsageError for an unknown name, an
    unknown key or a value of the wrong type.
    """
    kind: Any = ALGORITHMS.get(name) or (load_object(name) if ":" in name else _installed(name))
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        there = sorted({*ALGORITHMS, *(entry.name for entry in entry_points(group=GROUP))})
        raise UsageError(f"unknown algorithm {name!r}; there is {', '.join(there)}, or an import string")
    try:
        return kind(msgspec.convert(nested(config), kind.Config))
    except msgspec.ValidationError as error:
        raise UsageError(f"configuration of algorithm {name!r}: {error}") from None


def _installed(name: str) -> object:
    """What an installed package has under `name`; None when none has anything."""
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    try:
        return None if entry is None else entry.load()
    except Exception as error:
        raise UsageError(f"algorithm {name!r} cannot be loaded: {error}") from error


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with keys such as `credit.gamma` as mappings in mappings; later keys override earlier ones.

    A name that is given options becomes a mapping: `credit` `discounted` and `credit.gamma` 0.9 are
    `{"name": "discounted", "gamma": 0.9}`.
    """
    whole: dict[str, Any] = {}
    for key, value in config.items():
        *path, last = key.split(".")
        inner = whole
        for step in path:
            found = inner.get(step)
            if isinstance(found, Mapping):
                inner[step] = dict(cast("Mapping[str, Any]", found))
            else:
                inner[step] = {} if found is None else {"name": found}
            inner = inner[step]
        inner[last] = value
    return whole
