import json
from io import StringIO

import pytest
from rich.console import Console

from leyden.core.trainer.monitoring.display import Bars, Display, JsonLines, make_display

STEP = {"step": 3, "reward": 0.5, "rollouts": 128, "transitions": 230, "tokens_per_second": 1500.0, "seconds": 2.5}


def drive(shown: Display) -> None:
    shown.start(steps=10, done=2)
    shown.phase("rollouts", 128)
    shown.advance(64)
    shown.show("held out, before: 40.0 %")
    shown.step(3, STEP)
    shown.stop()
    shown.stop()


def test_json_lines_are_one_object_each(capsys: pytest.CaptureFixture[str]) -> None:
    drive(make_display(json=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"event": "message", "text": "held out, before: 40.0 %"}, {"event": "step", **STEP}]


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    drive(make_display(quiet=True))
    assert capfd.readouterr() == ("", "")


def test_json_beats_quiet() -> None:
    assert isinstance(make_display(quiet=True, json=True), JsonLines)


def test_bars_show_reward_pace_and_time_left() -> None:
    out = StringIO()
    now = [100.0]
    bars = Bars(Console(file=out, force_terminal=True, color_system=None, width=160), clock=lambda: now[0])
    bars.start(steps=10, done=2)
    bars.phase("rollouts", 128)
    now[0] += 4
    bars.step(3, STEP)
    bars.stop()
    text = out.getvalue()
    assert "step   3/10  reward 0.500  128 rollouts  230 calls  1,500 tokens/s  2.5 s" in text
    assert "reward 0.500 · 1,500 tokens/s · about 28 s of training left" in text


def test_bars_show_the_best_score_and_what_a_search_has_spent() -> None:
    out = StringIO()
    bars = Bars(Console(file=out, force_terminal=True, color_system=None, width=160), clock=lambda: 100.0)
    bars.start(steps=10, done=2)
    bars.phase("rollouts", 3)
    spent = {
        "spent_rollouts": 30,
        "spent_tokens": 12000,
        "spent_dollars": 0.25,
        "left_rollouts": 70,
        "left_dollars": 0.75,
    }
    bars.step(3, {"reward": 0.5, "rollouts": 6, "candidates": 4, "best": 2, "seconds": 2.5, **spent})
    bars.stop()
    shown = ["best 0.500", "4 candidates", "30 of 100 rollouts", "12,000 tokens", "$0.25 of $1"]
    assert "  ".join(["step   3/10", *shown, "2.5 s"]) in out.getvalue()
    assert " · ".join(shown) in out.getvalue()


def test_bars_show_the_loss_of_a_step_that_collected_nothing() -> None:
    out = StringIO()
    now = [100.0]
    bars = Bars(Console(file=out, force_terminal=True, color_system=None, width=160), clock=lambda: now[0])
    bars.start(steps=10, done=2)
    bars.phase("update")
    now[0] += 4
    step = {"loss": 0.25, "held_out_loss": 0.5, "transitions_trained": 64, "tokens_trained": 1200, "seconds": 2.5}
    bars.step(3, step)
    bars.stop()
    text = out.getvalue()
    assert "step   3/10  loss 0.250  64 calls  held-out loss 0.500  1,200 tokens  2.5 s" in text
    assert "loss 0.250 · 1,200 tokens · about 28 s of training left" in text
