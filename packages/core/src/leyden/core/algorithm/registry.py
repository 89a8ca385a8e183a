"""Algorithm registry: finds an algorithm by name or import string, and makes it with its configuration.

Installed packages can add algorithms with the entry-point group `leyden.algorithm`. They cannot replace a built-in
name.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.learner import Learner
from leyden.core.data.encoding.settings import SettingError, converted
from leyden.core.data.scheme import nested
from leyden.core.errors import UsageError, did_you_mean
from leyden.core.runner.user_code.loading import load_object

ALGORITHMS = {
    "lightning_rl": "leyden.core.algorithm.lightning_rl:LightningRL",
    "sft": "leyden.core.algorithm.sft:SFT",
    "dpo": "leyden.core.algorithm.dpo:DPO",
    "apo": "leyden.core.algorithm.prompts.apo:APO",
    "gepa": "leyden.core.algorithm.prompts.gepa:GEPA",
    "alternate": "leyden.core.algorithm.prompts.alternate:Alternate",
    "stages": "leyden.core.algorithm.stages:Stages",
    "side_by_side": "leyden.core.algorithm.side_by_side:SideBySide",
    "verl": "leyden.core.algorithm.verl.algorithm:VERL",
}
"""Built-in algorithms as import strings, because some of these modules import this one."""
GROUP = "leyden.algorithm"
_UNKNOWN = re.compile(r"object contains unknown field `(.+)`")


def make_algorithm(name: str, config: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm called `name`, or given by an import string, with its typed configuration.

    A key with dots reaches into an option that is a mapping: `credit.gamma` sets `gamma` of the `credit` option given
    before it. A command line can thus override a part of a configuration file. Raises UsageError for an unknown name,
    an unknown key, or a value of the wrong type.
    """
    kind: Any = algorithm_class(name)
    try:
        return kind(converted(nested(config), kind.Config))
    except SettingError as error:
        advice = _known_options(str(error), option_names(kind))
        raise UsageError(f"configuration of algorithm {name!r}: {error}{advice}") from None


def option_names(kind: type[Algorithm]) -> tuple[str, ...]:
    """Return the names of an algorithm's options."""
    return getattr(cast("Any", kind).Config, "__struct_fields__", ())


def _known_options(error: str, names: tuple[str, ...]) -> str:
    """Return what follows msgspec's message about an unknown option: the closest name and all names; else empty."""
    found = _UNKNOWN.fullmatch(error)
    return f"{did_you_mean(found[1], names)}; it has {', '.join(names)}" if found else ""


def make_learner(
    algorithm: str, config: Mapping[str, Any], *, learning_rate: float | None, label: str
) -> Learner[Any, Any]:
    """Return the learner called `algorithm`, which becomes a part of a larger algorithm.

    `learning_rate` is used if `config` has none. Raises UsageError, whose message begins with `label`, if the algorithm
    cannot be made or has a loop of its own.
    """
    defaults = {} if learning_rate is None else {"learning_rate": learning_rate}
    try:
        learner = make_algorithm(algorithm, {**defaults, **config})
    except UsageError as error:
        raise UsageError(f"{label}: {error}") from error
    if not isinstance(learner, Learner):
        kind = label.partition(" ")[0]
        raise UsageError(f"{label}: {algorithm} has its own training loop and cannot be a {kind}")
    return cast("Learner[Any, Any]", learner)


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the class of the algorithm called `name`, or given by an import string; raises UsageError if unknown."""
    if name in ALGORITHMS:
        module, _, attribute = ALGORITHMS[name].partition(":")
        return getattr(import_module(module), attribute)
    kind = load_object(name) if ":" in name else _installed(name)
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        if ":" in name:
            raise UsageError(f"algorithm {name!r} is not a subclass of leyden.core.Algorithm, but {kind!r}")
        known = sorted({*ALGORITHMS, *(entry.name for entry in entry_points(group=GROUP))})
        raise UsageError(f"unknown algorithm {name!r}; use one of {', '.join(known)}, or an import string")
    return kind


def _installed(name: str) -> object:
    """Return the object that an installed package registers under `name`; None if no package does."""
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    try:
        return None if entry is None else entry.load()
    except Exception as error:
        raise UsageError(f"algorithm {name!r} cannot be loaded: {error}") from error
