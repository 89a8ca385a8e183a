import sys
from pathlib import Path

import pytest

from leyden.core.trainer.monitoring.curve import save_curve, smooth, terminal_curve

METRICS = [{"step": 0, "held_out": "val", "success": 0.3}, *({"step": s, "reward": s / 10} for s in range(1, 9))]


def test_smoothing_is_a_trailing_mean() -> None:
    assert smooth([1.0, 3.0, 5.0, 7.0], window=2) == [1.0, 2.0, 4.0, 6.0]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    assert save_curve(METRICS, tmp_path / "c.png", "title", [(0, 0.3), (8, 0.9)])
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_one_point_is_no_curve(tmp_path: Path) -> None:
    assert not save_curve(METRICS[:2], tmp_path / "c.png", "title")
    assert not (tmp_path / "c.png").exists()
    assert terminal_curve(METRICS[:2]) == ""


def test_the_terminal_shows_a_curve() -> None:
    text = terminal_curve(METRICS)
    assert "step" in text
    assert len(text.splitlines()) >= 10


def test_an_installation_without_training_says_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    assert terminal_curve(METRICS) == "to see the reward curve here: pip install 'leyden-core[train]'"
