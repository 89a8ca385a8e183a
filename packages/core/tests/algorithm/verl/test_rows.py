"""Rows for VERL: what becomes one, what is left out and counted, and what a row holds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.verl.advantages import Estimation, RowCredit, row_advantages
from leyden.core.algorithm.verl.row_sampling import SAMPLING_FIELD, UNADJUSTED, RowSampling, adjustments
from leyden.core.algorithm.verl.rows import CREDIT_FIELD, PromptRows, RowLimits, training_rows, validation_rows
from leyden.core.algorithm.verl.wire import decode_group, encode_group
from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.registry import CREDIT
from leyden.core.data.encoding.images import PromptImage
from leyden.core.data.encoding.token_sets import pack_token_sets
from leyden.core.data.encoding.tokens import token_ids
from leyden.core.data.reasons import ADJUSTED_SAMPLING, NOT_RECOMPUTED, WITH_IMAGES
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.errors import TrainingError
from leyden.core.testing.factories import trajectory, transition

LIMITS = RowLimits(prompt=8, response=4)


def calls(count: int, **changes: Any) -> list[Transition]:
    return [transition([1, 2 + n], [3, 4, 5 + n], [-0.5, -1.0, -2.0], agent="a", **changes) for n in range(count)]


def rollouts(*made: tuple[float | None, Sequence[Transition]]) -> TrajectoryGroup:
    return TrajectoryGroup(
        task_id="t",
        trajectories=tuple(trajectory(reward, own, rollout_id=f"r{n}") for n, (reward, own) in enumerate(made)),
    )


def rows(group: TrajectoryGroup, credit: Any = "uniform", advantage: Any = "rloo") -> PromptRows:
    return training_rows("u", group, CREDIT.make(credit), ADVANTAGE.make(advantage), LIMITS)


def test_every_transition_is_a_row_with_the_return_that_it_answers_for() -> None:
    found = rows(rollouts((1.0, calls(3)), (0.0, calls(1))), {"name": "discounted", "gamma": 0.5})

    assert [(row.key, row.credit, row.weight) for row in found.rows] == [
        ("u_0_0", 0.25, 1.0),
        ("u_0_1", 0.5, 1.0),
        ("u_0_2", 1.0, 1.0),
        ("u_1_0", 0.0, 1.0),
    ]
    assert [row.turns for row in found.rows] == [3, 3, 3, 1]
    assert {row.reward for row in found.rows[:3]} == {1.0}
    assert not found.calls_left_out
    assert not found.rollouts_left_out


def test_a_row_holds_what_verl_reads() -> None:
    call = transition([7, 8], [9, 10, 11], [-0.5, -1.0, -2.0], versions=((4, 1), (6, 2)), version=4)
    row, *_ = rows(rollouts((0.75, [call]), (0.0, calls(1)))).rows
    fields = row.fields()

    assert fields["prompts"].tolist() == [7, 8]
    assert fields["responses"].tolist() == [9, 10, 11]
    assert fields["input_ids"].tolist() == [7, 8, 9, 10, 11]
    assert fields["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert fields["response_mask"].tolist() == fields["loss_mask"].tolist() == [1, 1, 1]
    assert fields["rollout_log_probs"].tolist() == [-0.5, -1.0, -2.0]
    assert fields["rm_scores"].tolist() == [0.0, 0.0, 0.75]
    assert fields[CREDIT_FIELD].tolist() == [0.75, 1.0, 3.0]
    assert fields[CREDIT_FIELD].dtype == torch.float64
    assert {fields[name].dtype for name in ("prompts", "responses", "input_ids", "response_mask")} == {torch.int64}
    assert fields["extra_fields"] == {"reward_extra_info": {"rollout_reward": 0.75}}
    assert (fields["uid"], row.fields(validate=True)["uid"]) == ("u_0_0", "u")
    assert row.tag(5) == {
        "status": "success",
        "prompt_len": 2,
        "response_len": 3,
        "seq_len": 5,
        "global_steps": 5,
        "min_global_steps": 4,
        "max_global_steps": 6,
    }


@pytest.mark.parametrize(
    ("reason", "unfit"),
    {
        "empty prompt": transition([], [1]),
        "empty response": transition([1], []),
        "log-probabilities do not match the response": transition([1], [2, 3], [-1.0]),
        "another temperature": transition([1], [2], temperature=0.5),
        "prompt over the limit": transition(range(1, 10), [2]),
        "response over the limit": transition([1], range(1, 6)),
    }.items(),
)
def test_a_transition_that_does_not_fit_is_left_out_whole_and_counted(reason: str, unfit: Transition) -> None:
    first, second = calls(2)
    found = rows(rollouts((1.0, [first, unfit, second]), (0.0, calls(1))), {"name": "discounted", "gamma": 0.5})

    assert found.calls_left_out == {reason: 1}
    # What is left answers for what it answered for before: credit saw the whole rollout.
    assert [(row.key, row.credit) for row in found.rows] == [("u_0_0", 0.25), ("u_0_2", 1.0), ("u_1_0", 0.0)]


def test_a_transition_as_long_as_the_limits_is_a_row() -> None:
    longest = transition(range(8), range(4))
    assert len(rows(rollouts((1.0, [longest]), (0.0, [longest]))).rows) == 2


def test_no_reward_is_no_row_and_never_a_zero() -> None:
    found = rows(rollouts((1.0, calls(2)), (None, calls(3)), (0.0, calls(1)), (1.0, [])))

    assert {row.session for row in found.rows} == {0, 2}
    assert found.rollouts_left_out == {"no reward": 1, "no call": 1}
    assert found.dropped is None


def test_a_rollout_none_of_whose_calls_is_left_is_counted() -> None:
    found = rows(rollouts((1.0, calls(1)), (0.0, [transition([], [1])]), (0.5, calls(1))))
    assert (found.rollouts_left_out, found.calls_left_out) == ({"no call left": 1}, {"empty prompt": 1})


def test_a_group_with_nothing_to_teach_has_no_row() -> None:
    alone = rollouts((1.0, calls(2)), (None, calls(2)))
    same = rollouts((1.0, calls(2)), (1.0, calls(1)))
    assert [rows(group).dropped for group in (alone, same)] == ["fewer than two rewards", "no spread"]
    assert [rows(group).rows for group in (alone, same)] == [[], []]


@pytest.mark.parametrize("advantage", ADVANTAGE.names())
def test_what_stays_of_a_group_that_was_dropped_is_never_trained(advantage: str) -> None:
    taught = rows(rollouts((1.0, calls(2)), (0.0, calls(1))), advantage=advantage).rows
    for group in (rollouts((1.0, calls(2))), rollouts((1.0, calls(2)), (1.0, calls(1)))):
        found = rows(group, advantage=advantage)
        assert (found.witness is None) == (found.dropped is None)
        if found.witness is not None:
            assert len(found.witness.response_ids) == min(len(call.response_ids) for call in calls(2))
            own = [replace(row, uid="v") for row in taught]
            credits = [
                RowCredit(key=row.key, credit=row.credit, weight=row.weight, tokens=len(row.response_ids))
                for row in [found.witness, *own]
            ]
            assert row_advantages(credits, Estimation(estimator=ADVANTAGE.make(advantage)))[0] == 0


@pytest.mark.parametrize(("advantage", "kept"), [("reinforce_plus_plus", 3), ("gae", 3), ("rloo", 0)])
def test_a_group_without_spread_stays_where_other_groups_are_compared_with_it(advantage: str, kept: int) -> None:
    assert len(rows(rollouts((1.0, calls(2)), (1.0, calls(1))), advantage=advantage).rows) == kept


def test_a_lonely_rollout_stays_only_where_no_group_is_needed() -> None:
    lonely = rollouts((1.0, calls(2)))
    kept = {name: len(rows(lonely, advantage=name).rows) for name in ADVANTAGE.names()}
    assert {name for name, count in kept.items() if count} == {"gae", "reinforce_plus_plus"}


def test_transitions_without_weight_are_no_rows() -> None:
    group = rollouts((1.0, [*calls(1), transition(agent="b")]), (0.0, calls(1)))
    found = rows(group, {"name": "selective", "agents": "a"})
    assert [row.key for row in found.rows] == ["u_0_0", "u_1_0"]
    assert found.calls_left_out == {"uncredited": 1}


def test_validation_takes_the_last_call_of_each_rewarded_rollout_and_drops_no_group() -> None:
    long = transition(range(1, 20), range(1, 20))
    found = validation_rows("u", rollouts((1.0, [*calls(1), long]), (1.0, calls(1)), (None, calls(1)), (0.0, [])))

    assert [(row.key, row.fields()["rm_scores"].sum().item()) for row in found.rows] == [("u_0_1", 1.0), ("u_1_0", 1.0)]
    assert found.rollouts_left_out == {"no reward": 1, "no call": 1}


class TooShort(CreditAssigner):
    def assign(self, trajectory: Trajectory) -> Credit | None:
        return Credit.of([1.0])


def test_credit_for_another_number_of_transitions_is_refused() -> None:
    with pytest.raises(TrainingError, match="has 2 transitions, and its credit has values for 1"):
        training_rows("u", rollouts((1.0, calls(2))), TooShort(), ADVANTAGE.make("rloo"), LIMITS)


@pytest.mark.parametrize(
    "sampling", [Sampling(grammar="start: /a/"), Sampling(presence_penalty=0.1), Sampling(logit_bias=((1, 2.0),))]
)
def test_calls_whose_probabilities_verl_cannot_compute_are_left_out_and_named(sampling: Sampling) -> None:
    own = [replace(call, span_id=f"s{n}", sampling=sampling if n == 1 else None) for n, call in enumerate(calls(3))]
    group = decode_group(encode_group(rollouts((1.0, own), (0.0, calls(1)))))
    found = rows(group)

    assert [row.key for row in found.rows] == ["u_0_0", "u_0_2", "u_1_0"]
    assert found.untrained == {"s1": ADJUSTED_SAMPLING}
    assert found.account.calls == {ADJUSTED_SAMPLING: ["s1"]}
    assert group.trajectories[0].transitions[1].sampling == sampling


def test_calls_whose_sampling_verls_engine_computes_are_rows_with_it(caplog: pytest.LogCaptureFixture) -> None:
    kept = pack_token_sets([np.array([[0b11000], [0b10000], [0b1100000]], dtype=np.int32)])
    samplings = [None, Sampling(presence_penalty=0.5), Sampling(top_k=2), Sampling(logit_bias=((99, 1.0),))]
    own = [
        replace(call, span_id=f"s{n}", sampling=samplings[n], kept=kept if n == 2 else None)
        for n, call in enumerate(calls(4))
    ]
    own = [replace(call, response_ids=token_ids([3, 4, 5])) for call in own]
    group = decode_group(encode_group(rollouts((1.0, own), (0.0, calls(1)))))
    limits = replace(LIMITS, sampling=RowSampling(lambda: ("no tokenizer is read", 64)))
    found = training_rows("u", group, CREDIT.make("uniform"), ADVANTAGE.make("rloo"), limits)

    assert [row.key for row in found.rows] == ["u_0_0", "u_0_1", "u_0_2", "u_1_0"]
    assert found.untrained == {"s3": NOT_RECOMPUTED}
    assert "call s3 of rollout ro: it has ids outside the policy's vocabulary" in caplog.text
    packed = [bytes(row.fields()[SAMPLING_FIELD].numpy()) for row in found.rows]
    assert packed[0] == packed[3] == UNADJUSTED
    assert [one.counted_K.tolist() for one in adjustments(packed[1], [1, 2], [3, 4, 5])] == [[], [3], [3, 4]]
    assert [one.bits_W for one in adjustments(packed[2], [1, 2], [3, 4, 5])] == [[0b11000], [0b10000], [0b1100000]]


def test_calls_with_images_are_left_out_and_named() -> None:
    image = PromptImage(digest="0" * 64, data=b"a picture", start=0, tokens=1)
    own = [replace(call, span_id=f"s{n}", images=(image,) if n == 1 else ()) for n, call in enumerate(calls(3))]
    group = decode_group(encode_group(rollouts((1.0, own), (0.0, calls(1)))))
    found = rows(group)

    assert [row.key for row in found.rows] == ["u_0_0", "u_0_2", "u_1_0"]
    assert found.account.calls == {WITH_IMAGES: ["s1"]}
    assert [one.digest for one in group.trajectories[0].transitions[1].images] == ["0" * 64]
