"""Where the seconds of a run went, and the advice that follows."""

from typing import Any

import pytest

from leyden.console.bottlenecks import Finding, findings_of, inside, loop_of, phases, step_seconds
from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt, AttemptedRollout
from leyden.core.data.span import Span

UPDATES = [
    {"step": step, "seconds": 50.0, "seconds_rollouts": 10.0, "seconds_trainer_idle": 10.0, "seconds_engine_idle": 40.0}
    for step in (1, 2)
]
"""Steps of which four fifths are updates, while no rollout is in flight."""
ROLLOUTS = [
    {"step": step, "seconds": 50.0, "seconds_rollouts": 80.0, "seconds_trainer_idle": 30.0, "seconds_engine_idle": 0.0}
    for step in (1, 2)
]
"""Steps of an overlapping loop, in which the trainer waits most of the time."""


def advice(lines: list[dict[str, Any]], loop: str | None) -> list[Finding]:
    return findings_of([], step_seconds(lines), [], lines, loop)


def test_an_engine_that_idles_waits_for_the_trainer() -> None:
    (found,) = advice(UPDATES, "sync")

    assert found.figure == "no rollout is in flight for 80% of the time of the steps"
    assert found.text.startswith("the engine waits for the trainer: let both work at once (--set loop=one_off")
    assert "--concurrency" not in found.text


@pytest.mark.parametrize("loop", ["one_off", "async"])
def test_an_overlapping_loop_is_not_advised_to_overlap(loop: str) -> None:
    (slow_trainer,) = advice(UPDATES, loop)
    (slow_rollouts,) = advice(ROLLOUTS, loop)

    assert "make updates cheaper" in slow_trainer.text
    assert slow_rollouts.text.startswith("the trainer waits for rollouts")
    assert slow_rollouts.figure == "the trainer waits for 60% of the time of the steps"


def test_a_run_that_waits_for_its_rollouts_by_design_gets_no_such_advice() -> None:
    assert advice(ROLLOUTS, "sync") == []
    assert advice(UPDATES, None) == []


def test_the_loop_can_be_chosen_only_where_the_algorithm_has_it() -> None:
    assert loop_of({"algorithm": "lightning_rl"}) == "sync"
    assert loop_of({"algorithm": "lightning_rl", "algorithm_config": {"loop": "async"}}) == "async"
    assert loop_of({"algorithm": "verl"}) is None
    assert loop_of({"algorithm": "lightning_rl", "vllm": {"sleep": True}}) is None


def test_the_rest_of_a_step_is_the_time_in_which_the_trainer_did_not_wait() -> None:
    assert step_seconds(ROLLOUTS).series["rest of the step"] == [20.0, 20.0]
    own = [{name: value for name, value in line.items() if not name.endswith("_idle")} for line in UPDATES]
    assert step_seconds(own).series["rest of the step"] == [40.0, 40.0]


def test_phases_are_shares_of_the_whole_time_of_the_run() -> None:
    report = {"seconds": 100.0, "seconds_by_phase": {"evaluate": 60.0, "update": 15.0}}

    found = phases(report)

    assert [(one.name, one.seconds, one.share) for one in found] == [
        ("evaluate", 60.0, 0.6),
        ("other", 25.0, 0.25),
        ("update", 15.0, 0.15),
    ]
    assert sum(one.share for one in phases({**report, "seconds": 50.0})) == pytest.approx(1.0)
    assert phases(None) == phases({"seconds": 3.0}) == []
    figures = [one.figure for one in findings_of(found, step_seconds([]), [], [])]
    assert figures == ["evaluations take 60% of the run's time"]


def span(start: float, end: float, **attributes: Any) -> Span:
    return Span(
        rollout_id="r",
        attempt_id="a",
        sequence_id=0,
        trace_id="0" * 32,
        span_id=f"{int(start * 10):016x}",
        name="span",
        start_time=start,
        end_time=end,
        attributes=attributes,
    )


def test_the_parts_of_a_rollout_add_up_to_its_time() -> None:
    """Code before, between and after the spans is the agent's, and a model call inside a tool counts once."""
    attempt = Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=10.0, end_time=30.0)
    rollout = AttemptedRollout(rollout_id="r", input={}, start_time=6.0, end_time=30.0, attempt=attempt)
    call = {semconv.OPERATION: "chat", semconv.CALL_ID: "c"}

    found = inside(
        [(rollout, [span(12, 16, **call), span(18, 24, **{semconv.OPERATION: "execute_tool"}), span(20, 22, **call)])]
    )

    assert {one.name: one.seconds for one in found} == {
        "model calls": 6.0,
        "tools": 4.0,
        "agent code": 10.0,
        "waiting in queue": 4.0,
    }


def test_steps_that_do_not_know_the_spread_of_their_groups_do_not_count_as_equal() -> None:
    lines = [{"step": 1, "groups": 4, "groups_with_spread": 3}, {"step": 2, "groups": 40}]

    assert findings_of([], step_seconds(lines), [], lines) == []
