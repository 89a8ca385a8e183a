from leyden.core.testing.factories import trajectory
from leyden.core.trainer.rescore.control import compared
from leyden.core.trainer.rescore.messages import Score
from leyden.core.trainer.rescore.show import control_lines
from leyden.core.trainer.rescore.stored_rollouts import StoredRollout

REWARDED = [
    StoredRollout(
        rollout_id=name, mode="train", group="g", task="t", result="1", trajectory=trajectory(1.0, rollout_id=name)
    )
    for name in ("a", "b")
]
NOT_STORED = Score(error="the record has its text only", kind="not stored")


def test_only_a_reward_that_came_out_otherwise_is_explained() -> None:
    """A reward that read what is not stored says nothing about the reward function."""
    found = compared("own.py:score", REWARDED, {"a": Score(value=1.0), "b": NOT_STORED}, "own.py has changed")
    assert (found.reproduced, found.otherwise, found.remark) == (1, 0, "")
    assert list(control_lines(found)) == [
        "control: own reward reproduces 1 of 2 stored rewards",
        "        1  not stored: the record has its text only (such as b)",
    ]

    found = compared("own.py:score", REWARDED, {"a": Score(value=0.5), "b": NOT_STORED})
    assert (found.reproduced, found.otherwise) == (0, 1)
    assert list(control_lines(found))[-1].startswith("  the reward draws at random, reads something outside")
    failed = Score(error="it raised", kind="reward failed")
    assert compared("own.py:score", REWARDED, {"a": failed, "b": NOT_STORED}, "own.py has changed").remark
