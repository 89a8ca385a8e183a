import pytest

from leyden.core.trainer.rescore.comparison import (
    complete_groups,
    dimension_distributions,
    distribution,
    group_changes,
    rank_changes,
)
from leyden.core.trainer.rescore.result import RescoredRollout


def rescored(
    name: str, before: float | None, after: float | None, group: str = "g", **given: object
) -> RescoredRollout:
    fields: dict[str, object] = {"mode": "train", **given}
    return RescoredRollout(rollout_id=name, group=group, before=before, after=after, **fields)  # type: ignore[arg-type]


def test_both_sides_are_counted_in_the_same_bins() -> None:
    found = distribution([(0.0, 0.5), (1.0, 0.5), (1.0, 1.0)], bins=2)
    assert found is not None
    assert (found.edges, found.before, found.after) == ([0.0, 0.5, 1.0], [1, 2], [0, 3])
    assert (found.mean_before, found.mean_after) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_equal_rewards_have_one_bin_and_none_have_no_distribution() -> None:
    found = distribution([(2.0, 2.0)])
    assert found is not None
    assert (found.edges, found.before, found.after) == ([2.0, 2.0], [1], [1])
    assert distribution([]) is None


def test_dimensions_that_both_rewards_have_are_compared() -> None:
    one = rescored("a", 1, 1, dimensions_before={"f1": 0.2, "form": 1.0}, dimensions_after={"f1": 0.4, "new": 1.0})
    found = dimension_distributions([one])
    assert list(found) == ["f1"]
    assert (found["f1"].mean_before, found["f1"].mean_after) == (0.2, 0.4)


def test_ranks_are_compared_overall_and_within_groups() -> None:
    # Within each group the order is kept; between the groups it is reversed.
    rollouts = [rescored("a", 0, 10), rescored("b", 1, 11), rescored("c", 5, 1, "h"), rescored("d", 6, 2, "h")]
    found = rank_changes(rollouts)
    assert found is not None
    assert found.tau == pytest.approx((2 - 4) / 6)
    assert (found.tau_in_groups, found.groups, found.moved) == (1.0, 2, 4)
    assert [(move.rollout_id, move.rank_before, move.rank_after) for move in found.most[:1]] == [("a", 4.0, 2.0)]


def test_a_group_with_an_unscored_rollout_is_not_compared() -> None:
    groups, incomplete = complete_groups(
        [rescored("a", 1, 1), rescored("b", 0, None), rescored("c", 1, 1, "h"), rescored("d", None, None, "h")],
        without_result=["d"],
    )
    assert (list(groups), incomplete) == (["h"], 1)
    assert complete_groups([rescored("held out", 1, None, "")]) == ({}, 0)


def test_groups_gain_and_lose_spread() -> None:
    rewards = {"gains": (0, 0, 0, 1), "loses": (0, 1, 1, 1), "keeps": (0, 1, 1, 0), "none": (0, 0, 1, 1)}
    groups = {
        name: [rescored("a", before_a, after_a, name), rescored("b", before_b, after_b, name)]
        for name, (before_a, before_b, after_a, after_b) in rewards.items()
    }
    found = group_changes(groups, 3, {"gains": ("no spread", "")})
    assert [(one.group, one.change) for one in found.groups] == [(name, name) for name in rewards]
    assert found.counts == {"gains": 1, "loses": 1, "keeps": 1, "none": 1}
    assert (found.groups[0].before, found.groups[0].after, found.groups[0].dropped_before) == (0.0, 1.0, "no spread")
    assert found.incomplete == 3
