"""The section `agentlightning` of the dictionaries of Agent Lightning 0.3, which VERL itself does not have."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from leyden.core.errors import UsageError

SECTION = "agentlightning"
_LEVEL = f"{SECTION}.trace_aggregator.level"
_UNUSED = frozenset(
    f"{SECTION}.trace_aggregator.{name}"
    for name in ("trajectory_max_prompt_length", "trajectory_max_response_length", "debug", "mismatch_log_dir")
)
"""Keys that only the level `trajectory` reads."""


def without_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` without the section, which may only say what Leyden does: a row for each model call.

    Raises UsageError, in one line with the key's path, for anything else.
    """
    for path, value in _leaves(SECTION, config.get(SECTION, {})):
        if path in _UNUSED or (path == _LEVEL and value == "transition"):
            continue
        if path == _LEVEL:
            raise UsageError(
                f"{path}: {value!r} is not possible with Leyden: VERL gets a row for each model call, and advantages "
                f"compare whole rollouts. Remove {SECTION}, and let data.max_prompt_length hold the longest prompt of "
                "a rollout; LightningRL in the place of VERL reads a rollout as one sequence"
            )
        raise UsageError(f"{path} has no meaning in Leyden, whose gateway takes the place of the proxy: remove it")
    return {key: value for key, value in config.items() if key != SECTION}


def _leaves(path: str, found: object) -> Iterator[tuple[str, object]]:
    if not isinstance(found, Mapping):
        yield path, found
        return
    for key, value in cast("Mapping[str, object]", found).items():
        yield from _leaves(f"{path}.{key}", value)
