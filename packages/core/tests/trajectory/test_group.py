import pytest

from leyden.core.testing.factories import trajectory
from leyden.core.trajectory.group import group_by_task


def test_trajectories_of_a_task_stand_together_in_order_of_first_appearance() -> None:
    trajectories = [trajectory(1.0, rollout_id=name) for name in ("b1", "a1", "b2")]

    groups = group_by_task(trajectories, {"a1": "a", "b1": "b", "b2": "b"})

    assert [(g.task_id, [t.rollout_id for t in g.trajectories]) for g in groups] == [("b", ["b1", "b2"]), ("a", ["a1"])]


def test_a_rollout_of_no_known_task_is_an_error() -> None:
    with pytest.raises(KeyError):
        group_by_task([trajectory(1.0, rollout_id="x")], {})
