"""What became of every rollout and call of a batch: each named once, whatever the algorithm leaves out."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from leyden.core.advantage.base import DropReason
from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.account import Account, account_of, failed_line, lacking
from leyden.core.algorithm.advantage_pipeline import weigh
from leyden.core.algorithm.dpo import DPO, DPOConfig
from leyden.core.algorithm.sft import SFT, SFTConfig
from leyden.core.algorithm.verl.rows import RowLimits, training_rows
from leyden.core.credit.registry import CREDIT
from leyden.core.data import reasons
from leyden.core.data.failure import Failure
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.testing.factories import trajectory, transition

LIMITS = RowLimits(prompt=8, response=4)


def rollout(name: str, reward: float | None = 1.0, calls: Sequence[str] = ("writer",), **changes: Any) -> Trajectory:
    """One whose calls are made by these agents, each to the same prompt with an answer of its own."""
    made = [
        transition([1], [2 + place, sum(name.encode())], rollout_id=name, span_id=f"{name}-{place}", agent=agent)
        for place, agent in enumerate(calls)
    ]
    return trajectory(reward, made, rollout_id=name, **changes)


def failed(name: str, kind: Any = "agent", message: str = "bad day", **changes: Any) -> Trajectory:
    failure = Failure(kind=kind, type="ValueError", message=message)
    return rollout(name, None, changes.pop("calls", ()), succeeded=False, failure=failure, **changes)


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(task_id=trajectories[0].rollout_id, trajectories=trajectories)


def weighed(*groups: TrajectoryGroup, credit: Any = "uniform", advantage: Any = "grpo") -> Account:
    return weigh(groups, CREDIT.make(credit), ADVANTAGE.make(advantage)).account


def test_each_rollout_is_trained_or_left_out_for_one_reason() -> None:
    account = weighed(
        group(rollout("good"), rollout("bad", 0.0), failed("broken"), rollout("silent", None)),
        group(rollout("same"), rollout("too"), rollout("none", 1.0, ())),
        group(rollout("alone"), failed("slow", "timeout"), rollout("unseen", 1.0, (), untrained={"x": "refused"})),
    )
    assert account.trained == ["good", "bad"]
    assert account.rollouts == {
        "agent error": ["broken"],
        "no reward": ["silent"],
        "no spread": ["same", "too"],
        "no call": ["none"],
        "fewer than two rewards": ["alone"],
        "timeout": ["slow"],
        "no call left": ["unseen"],
    }
    assert account.calls == {"refused": ["x"]}
    assert account.counts()["rollouts_left_out/no spread"] == 2


def test_a_call_without_credit_is_left_out_of_a_rollout_that_is_trained() -> None:
    last = {"name": "selective", "agents": "judge"}
    account = weighed(
        group(rollout("good", 1.0, ("writer", "judge")), rollout("bad", 0.0, ("writer", "judge"))), credit=last
    )
    assert (account.trained, account.calls) == (["good", "bad"], {"uncredited": ["good-0", "bad-0"]})


def test_what_earned_the_mean_is_trained_and_moves_nothing() -> None:
    account = weighed(group(rollout("low", 0.0), rollout("mean", 0.5), rollout("high", 1.0)))
    assert (account.trained, account.unmoved) == (["low", "mean", "high"], ["mean-0"])


def test_a_failed_rollout_with_a_reward_is_trained_as_any_other() -> None:
    emitted = rollout("emitted", 0.25, succeeded=False)
    assert weighed(group(emitted, rollout("good"))).trained == ["emitted", "good"]


def test_what_is_imitated_and_what_is_not() -> None:
    batch = [group(rollout("best"), rollout("other", 0.9), failed("broken"), rollout("none", 1.0, ()))]
    account = SFT(SFTConfig(keep="best")).select_units(batch).account
    assert account.trained == ["best"]
    assert account.rollouts == {
        "not the best of its group": ["other"],
        "agent error": ["broken"],
        "no call to imitate": ["none"],
    }


def test_a_call_of_no_pair_is_left_out() -> None:
    batch = [group(rollout("up", 1.0), rollout("down", 0.0), rollout("middle", 0.5)), group(rollout("alone"))]
    account = DPO(DPOConfig()).select_units(batch).account
    assert (account.trained, account.rollouts) == (
        ["up", "down"],
        {"in no pair": ["middle"], "fewer than two rewards": ["alone"]},
    )


def test_verls_rows_are_accounted_for_call_by_call() -> None:
    long = transition([1] * 9, [2], rollout_id="cut", span_id="cut-0")
    found = training_rows(
        "u",
        group(
            rollout("good", 1.0, ("writer", "writer")),
            rollout("bad", 0.0),
            failed("broken"),
            trajectory(0.5, [long], rollout_id="cut"),
        ),
        CREDIT.make("uniform"),
        ADVANTAGE.make("grpo"),
        LIMITS,
    )
    assert found.account.trained == ["good", "bad"]
    assert found.account.rollouts == {"agent error": ["broken"], "no credited call": ["cut"]}
    assert found.account.calls == {"prompt over the limit": ["cut-0"]}
    same = group(rollout("one"), rollout("two"))
    dropped = training_rows("u", same, CREDIT.make("uniform"), ADVANTAGE.make("grpo"), LIMITS)
    assert (dropped.account.trained, dropped.account.rollouts) == ([], {"no spread": ["one", "two"]})


def test_a_batch_that_teaches_no_side_that_acts_trains_nothing() -> None:
    account = Account(trained=["a"], rollouts={"no spread": ["b"]}, unmoved=["x"]).without_step().of_side("left")
    assert (account.side, account.trained, account.unmoved) == ("left", [], [])
    assert account.rollouts == {"no spread": ["b"], reasons.NO_ACTING_SIDE: ["a"]}


def test_failures_are_named_with_the_most_frequent_first() -> None:
    groups = [
        group(failed("r1", "timeout", "no result within 1 s"), *(failed(f"f{n}") for n in range(3)), rollout("ok"))
    ]
    assert failed_line(groups) == "4 of 5 rollouts failed: 3 × ValueError: bad day; 1 × no result within 1 s"
    assert failed_line([group(rollout("ok"))]) == ""


trajectories = st.tuples(
    st.sampled_from([None, 0.0, 0.5, 1.0]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([None, "agent", "timeout", "worker", "leyden"]),
)


@given(st.lists(st.lists(trajectories, min_size=1, max_size=4), max_size=4))
def test_nothing_is_counted_twice_and_nothing_is_forgotten(batch: Any) -> None:
    groups: list[TrajectoryGroup] = []
    for task, members in enumerate(batch):
        made: list[Trajectory] = []
        for copy, (reward, calls, untrained, kind) in enumerate(members):
            name = f"{task}-{copy}"
            failure = None if kind is None else Failure(kind=kind, type="E", message="m")
            made.append(
                rollout(
                    name,
                    reward,
                    ("writer",) * calls,
                    succeeded=kind is None,
                    failure=failure,
                    untrained={f"{name}-u{n}": "not selected" for n in range(untrained)},
                )
            )
        groups.append(group(*made))
    every = [one for each in groups for one in each.trajectories]
    for account in (
        weighed(*groups),
        DPO(DPOConfig()).select_units(groups).account,
        SFT(SFTConfig(keep="best")).select_units(groups).account,
    ):
        named = Counter([*account.trained, *(name for ids in account.rollouts.values() for name in ids)])
        assert named == Counter(one.rollout_id for one in every)
        spans = Counter(span for ids in account.calls.values() for span in ids)
        assert not spans or max(spans.values()) == 1
        assert {span for one in every for span in one.untrained} <= spans.keys()
        assert all(reasons.reason_of(name).means != name for name in [*account.rollouts, *account.calls])


def test_groups_are_dropped_for_reasons_of_the_table() -> None:
    assert all(reasons.REASONS[name].level in ("group", "rollout") for name in get_args(DropReason))


def test_what_a_trajectory_lacks() -> None:
    assert lacking(rollout("ok")) is None
    assert lacking(rollout("ok", None, succeeded=False)) == "failed without a reason"
    account = account_of([group(rollout("ok"))], set())
    assert account.rollouts == {"no credited call": ["ok"]}
