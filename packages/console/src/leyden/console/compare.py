"""Comparison of runs: what their configurations differ in, and their held-out results task by task."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from leyden.console.plain import plain
from leyden.console.run_view import RunView
from leyden.console.runs.run import Version
from leyden.core.trainer.run_folder.comparison import compare

MOST = 8
"""Most runs of one comparison."""
ALWAYS_DIFFERENT = frozenset({"name"})


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in which the runs differ, with its value in each."""

    key: str
    values: list[Any]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Result of run `b` less that of run `a`, by their places in the list, on the tasks that both ran."""

    a: int
    b: int
    difference: float
    low: float
    high: float
    common: int
    wins: int
    losses: int


class ComparedSet(msgspec.Struct, frozen=True, kw_only=True):
    """A held-out set that at least two of the runs have."""

    name: str
    tasks: int
    rows: list[Pair]


def differences(configs: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Return the settings in which the configurations differ; keys with dots lead into mappings."""
    flat = [_flat(config) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    found = [Difference(key=key, values=[plain(one.get(key)) for one in flat]) for key in keys]
    return [one for one in found if one.key not in ALWAYS_DIFFERENT and any(v != one.values[0] for v in one.values)]


async def comparison(views: Sequence[RunView]) -> dict[str, Any]:
    """Return the settings in which runs differ, and their held-out results task by task."""
    items = [await view.item() for view in views]
    versions = [await view.run.versions() for view in views]
    shown = [evaluated(own) for own in versions]
    lacking = [item for item, own in zip(items, shown, strict=True) if own is None]
    why = {
        "no version was evaluated task by task": [item.label for item in lacking if item.folder is not None],
        "results task by task are in the run's folder, which is not on this machine": [
            item.label for item in lacking if item.folder is None
        ],
    }
    return {
        "runs": items,
        "differences": differences([await view.run.config() for view in views]),
        "sets": compared_sets(versions),
        "versions": [None if own is None else own.version for own in shown],
        "notes": [f"{', '.join(labels)}: {reason}" for reason, labels in why.items() if labels],
    }


def compared_sets(versions: Sequence[Sequence[Version]]) -> list[ComparedSet]:
    """Compare the kept versions of the runs, or their last ones, on each held-out set; with each, the first run."""
    rewards = [_rewards(own) for own in versions]
    names = dict.fromkeys(name for own in rewards for name in own)
    found: list[ComparedSet] = []
    for name in names:
        own = [(at, rewards[at][name]) for at in range(len(rewards)) if name in rewards[at]]
        if len(own) < 2:
            continue
        first, base = own[0]
        rows: list[Pair] = []
        for at, other in own[1:]:
            pair = compare(base, other)
            if pair is not None:
                rows.append(
                    Pair(
                        a=first,
                        b=at,
                        difference=pair.b - pair.a,
                        low=pair.difference[0],
                        high=pair.difference[1],
                        common=pair.tasks,
                        wins=pair.wins,
                        losses=pair.losses,
                    )
                )
        found.append(ComparedSet(name=name, tasks=max(len(rewards) for _, rewards in own), rows=rows))
    return found


def evaluated(versions: Sequence[Version]) -> Version | None:
    """Return the version that stands for a run: the kept one, or the last one that was evaluated."""
    known = [version for version in versions if version.rewards]
    return next((version for version in known if version.kept), known[-1] if known else None)


def _rewards(versions: Sequence[Version]) -> dict[str, dict[str, float]]:
    version = evaluated(versions)
    return {} if version is None else {name: own for name, own in version.rewards.items() if own}


def _flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping) and value:
            found |= _flat(cast("Mapping[str, Any]", value), f"{key}.")
        else:
            found[key] = value
    return found
