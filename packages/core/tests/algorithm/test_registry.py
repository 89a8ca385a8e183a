"""Algorithms that installed packages bring along, and names that nobody knows."""

from importlib.metadata import EntryPoint

import pytest

from leyden.core.algorithm import registry
from leyden.core.algorithm.lightning_rl import LightningRL
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.algorithm.sft import SFT
from leyden.core.errors import UsageError

SOFT = "leyden.core.algorithm.sft:SFT"


@pytest.fixture(autouse=True)
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"plugged": SOFT, "broken": "no_such_package_here:Mine", "odd": "builtins:dict", "lightning_rl": SOFT}
    entries = [EntryPoint(name=name, value=value, group="leyden.algorithm") for name, value in values.items()]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry for entry in entries if entry.group == group and name in (None, entry.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_a_plug_in_is_made_by_its_name() -> None:
    assert isinstance(make_algorithm("plugged", {"spans": "runs/teacher"}), SFT)


def test_a_built_in_name_cannot_be_taken_over() -> None:
    assert isinstance(make_algorithm("lightning_rl", {}), LightningRL)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "mine",
            "unknown algorithm 'mine'; "
            f"use one of {', '.join(sorted({*registry.ALGORITHMS, 'broken', 'odd', 'plugged'}))}, or",
        ),
        ("odd", "unknown algorithm 'odd'"),
        ("pathlib:Path", "algorithm 'pathlib:Path' is not a subclass of leyden.core.Algorithm, but <class"),
        ("broken", "algorithm 'broken' cannot be loaded: No module named 'no_such_package_here'"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        make_algorithm(name, {})
    assert "\n" not in str(caught.value)
