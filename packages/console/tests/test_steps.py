"""Steps as columns."""

from leyden.console.runs.metrics_file import MetricsLines
from leyden.console.steps import steps_of

LINES = [
    {"step": 0, "held_out": "val", "success": 0.25},
    {"step": 1, "reward": 0.5, "loss": float("nan"), "note": "text", "planner/entropy": 1.0},
    {"step": 1, "alert": "mismatch", "message": "they drift apart"},
    {"step": 2, "reward": 0.75, "calls_left_out/not selected": 3},
    {"step": 2, "held_out": "val", "sampled": 0.5, "sides": {"a": 0.25, "b": 0.75}},
]


def test_every_step_has_a_number_in_each_column_or_none_where_it_is_not_known() -> None:
    found = steps_of(MetricsLines(LINES, "g"))

    assert found.steps == [1, 2]
    assert found.series == {
        "reward": [0.5, 0.75],
        "planner/entropy": [1.0, None],
        "calls_left_out/not selected": [0.0, 3.0],
    }
    assert [(one.step, one.kind, one.success, one.side) for one in found.held_out] == [
        (0, "own", 0.25, None),
        (2, "sampled", 0.25, "a"),
        (2, "sampled", 0.75, "b"),
    ]
    assert [(one.step, one.name) for one in found.alerts] == [(1, "mismatch")]
    assert {group.title: group.series for group in found.groups} == {
        "Reward": ["reward"],
        "Policy": ["planner/entropy"],
        "Update": ["loss"],
        "Left out": ["calls_left_out/not selected"],
    }


def test_series_that_are_seldom_needed_are_told_apart_from_those_that_are_shown() -> None:
    lines = [{"step": 1, "reward": 0.5, "ratio_p01": 0.9, "ratio_p99": 1.1, "ratio_max": 9.0, "side/transitions": 3}]

    assert {group.title: (group.series, group.folded) for group in steps_of(MetricsLines(lines, "g")).groups} == {
        "Reward": (["reward"], False),
        "Ratio to the policy before the update": (["ratio_p01", "ratio_p99"], True),
        "Model calls": (["side/transitions"], True),
    }


def test_a_page_that_has_read_some_lines_gets_the_others() -> None:
    assert steps_of(MetricsLines(LINES, "g"), 2, "g").steps == [2]
    assert steps_of(MetricsLines(LINES, "g"), 5, "g").steps == []


def test_after_a_rollback_a_page_gets_all_lines() -> None:
    assert steps_of(MetricsLines(LINES, "new"), 4, "old").steps == [1, 2]
    assert steps_of(MetricsLines(LINES, "g"), 99, "g").steps == [1, 2]
