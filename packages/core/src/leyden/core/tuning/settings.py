"""Settings of a trial: what a searched key names in a run file, and how its value is read and written there."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from leyden.core.algorithm.registry import algorithm_class, make_algorithm, option_names
from leyden.core.data.scheme import nested
from leyden.core.errors import UsageError, did_you_mean
from leyden.core.experiments.settings import USUAL, Settings, overridden
from leyden.core.trainer.config import RunConfig
from leyden.core.tuning.space import Space, Value, Values

OPTIONS = "algorithm_config"
FIXED = {
    "name": "each trial has its own",
    "experiment": "it is the name of the study",
    "seed": "give --seeds; a seed is no setting that could be better",
    "held_out": "all trials are compared on the same held-out set",
    "eval_every": "give --eval-every; all trials are evaluated after the same steps",
    "evaluate_sampled": "trials are evaluated with the agent's own sampling alone",
    "check": "trials run without the check",
    "sides": "a run derives it from its algorithm",
    "acting": "a run derives it from its algorithm",
}
"""Settings that no search may have, and why."""
_MISSING: Any = object()


def setting_path(key: str, base: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a run file has the setting `key`: a field of the run, or `algorithm_config` and an option's name.

    An option of the algorithm may be given with or without `algorithm_config.` before it. Raises UsageError, with one
    line, for a key that no run has and for one that a study fixes.
    """
    first, *rest = key.split(".")
    if first in FIXED:
        raise UsageError(f"--search {key}: it cannot be searched: {FIXED[first]}")
    if first == OPTIONS and rest:
        return _checked_option(key, rest, base)
    if first in RunConfig.__struct_fields__:
        if first == OPTIONS:
            raise UsageError(f"--search {key}: name one option of the algorithm, as --search learning_rate=...")
        return (first, *rest)
    return _checked_option(key, [first, *rest], base)


def _checked_option(key: str, parts: list[str], base: Mapping[str, Any]) -> tuple[str, ...]:
    algorithm = base.get("algorithm", USUAL)
    known = option_names(algorithm_class(algorithm))
    if parts[0] not in known:
        advice = did_you_mean(key.replace("-", "_"), [*known, *RunConfig.__struct_fields__])
        raise UsageError(f"--search {key}: neither a run nor the algorithm {algorithm} has this setting{advice}")
    return (OPTIONS, ".".join(parts))


def with_settings(base: Mapping[str, Any], space: Space, values: Values) -> Settings:
    """Return the settings `base` with `values` of the searched keys in their places.

    A searched `algorithm` goes first: another algorithm begins without the options of the first.
    """
    found: Settings = {**base}
    # A scheme goes before its own options, which it would remove.
    for key in sorted(values, key=lambda name: (name != "algorithm", name.removeprefix(f"{OPTIONS}.").count("."))):
        path, setting = setting_path(key, found), space[key].setting_of(values[key])
        found = overridden(found, {key: setting}) if key == "algorithm" else _put(found, path, setting)
    return found


def _put(settings: Mapping[str, Any], path: tuple[str, ...], value: Any) -> Settings:
    first, *rest = path
    if not rest:
        # An option that was given in dots before would otherwise reach into the new value.
        inner = {name: one for name, one in settings.items() if not name.startswith(f"{first}.")}
        inner.pop(first, None)
        return {**inner, first: value}
    inside = settings.get(first)
    plain = cast("Settings", inside) if isinstance(inside, dict) else {}
    return {**settings, first: _put(plain, tuple(rest), value)}


def setting_of(settings: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key in the settings of a run; its default if they do not have it, None if there is none."""
    path = setting_path(key, settings)
    if path[0] != OPTIONS:
        found = _at(settings, path)
        return _at(_run_defaults(), path, None) if found is _MISSING else found
    parts = tuple(path[1].split("."))
    algorithm: str = settings.get("algorithm", USUAL)
    given: Settings = settings.get(OPTIONS) or {}
    found = _at(nested(given), parts)
    if found is _MISSING:
        found = _at(make_algorithm(algorithm, given).settings(), parts, None)
    return found


def _run_defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(RunConfig):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = msgspec.to_builtins(field.default)
    return found


def _at(settings: Any, path: tuple[str, ...], otherwise: Any = _MISSING) -> Any:
    for name in path:
        if not isinstance(settings, dict) or name not in settings:
            return otherwise
        settings = cast("Settings", settings)[name]
    return settings


def values_of(settings: Mapping[str, Any], space: Space) -> dict[str, Value]:
    """Return the values of the searched keys in the settings of a run, without those that are not in the space."""
    found = {key: domain.value_of(setting_of(settings, key)) for key, domain in space.items()}
    return {key: value for key, value in found.items() if value is not None}
