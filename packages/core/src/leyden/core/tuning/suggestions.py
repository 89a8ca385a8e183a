"""Suggestions of a search: the keys of a run that are usually worth searching, with domains around its own values."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from leyden.core.errors import UsageError
from leyden.core.tuning.settings import setting_of, setting_path
from leyden.core.tuning.space import Domain, read_space

FACTOR = 5
"""A learning rate is searched from a fifth of the run's own to five times it."""
USUAL_CREDIT = ("uniform", "discounted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A key that a study of a run could search."""

    key: str
    domain: str
    """As `--search KEY=DOMAIN` has it."""
    own: Any
    """The run's own value."""
    why: str
    changes_cost: bool
    """Whether a value changes how many rollouts a step makes, so that trials differ in what they cost."""


@dataclass(frozen=True, slots=True)
class _Usual:
    key: str
    domain: Callable[[Any], str | None]
    why: str
    changes_cost: bool = False


def suggested(settings: Mapping[str, Any]) -> list[Suggestion]:
    """Return the suggestions for a run with these settings, those of most use first.

    Empty for an algorithm that has none of the keys. Each domain contains the run's own value.
    """
    found: list[Suggestion] = []
    for usual in _USUAL:
        try:
            setting_path(usual.key, settings)
            own = _plain(setting_of(settings, usual.key))
        except UsageError:  # another algorithm, which has no such option
            continue
        domain = usual.domain(own)
        if domain is not None and _read(usual.key, domain).value_of(own) is not None:
            found.append(
                Suggestion(key=usual.key, domain=domain, own=own, why=usual.why, changes_cost=usual.changes_cost)
            )
    return found


def _read(key: str, domain: str) -> Domain:
    return read_space([f"{key}={domain}"])[key]


def _plain(own: Any) -> Any:
    """Return a scheme without options as its name."""
    if isinstance(own, dict):
        known = cast("dict[str, Any]", own)
        return known["name"] if known.keys() == {"name"} else known
    return own


def _rate(own: Any) -> str | None:
    if not _is_number(own) or own <= 0:
        return None
    return f"{_rounded(own / FACTOR)}..{_rounded(own * FACTOR)}:log"


def _credit(own: Any) -> str | None:
    if isinstance(own, str):
        return ",".join([own, *(name for name in USUAL_CREDIT if name != own)])
    return json.dumps([own, *USUAL_CREDIT]) if isinstance(own, dict) else None


def _whole(low: int, high: int) -> Callable[[Any], str | None]:
    """Return the domain from `low` to `high`, wider if the run's own value is outside."""

    def domain(own: Any) -> str | None:
        if not _is_number(own) or own != int(own):
            return None
        return f"{min(low, int(own))}..{max(high, int(own))}:int"

    return domain


def _around(own: Any) -> str | None:
    """Return whole numbers from half of the run's own value to twice it."""
    if not _is_number(own) or own != int(own) or own < 2:
        return None
    return f"{max(2, int(own) // 2)}..{int(own) * 2}:int"


def _temperature(own: Any) -> str | None:
    if not _is_number(own) or own <= 0:
        return None
    return f"{_rounded(own * 0.7)}..{_rounded(own * 1.3)}"


def _is_number(own: Any) -> bool:
    return isinstance(own, int | float) and not isinstance(own, bool) and math.isfinite(own)


def _rounded(value: float) -> str:
    return f"{value:.2g}"


_USUAL = (
    _Usual("learning_rate", _rate, "how far each update moves the policy; the one that decides most often"),
    _Usual("credit", _credit, "how the reward is divided among the calls of a rollout"),
    _Usual("epochs", _whole(1, 3), "how often each batch is learned from; more epochs reuse the same rollouts"),
    _Usual("entropy_bonus", lambda own: "0..0.01" if own == 0 else None, "keeps the policy from becoming certain"),
    _Usual("sampling.temperature", _temperature, "how much the rollouts of a task differ"),
    _Usual("group_size", _around, "rollouts of each task, which are compared with each other", changes_cost=True),
    _Usual("tasks_per_step", _around, "tasks of each step", changes_cost=True),
)
