import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.algorithm.policy_partition import critic_by_policy, owner, split_by_policy
from leyden.core.errors import TrainingError
from leyden.core.testing.factories import transition

NAMES = ("planner", "reporter", "judge")


@given(st.lists(st.sampled_from(NAMES)))
def test_every_call_is_dealt_once_to_the_policy_that_made_it_and_in_order(made_by: list[str]) -> None:
    calls = [transition(policy=name) for name in made_by]
    dealt = split_by_policy(calls, NAMES, lambda call: call)
    assert {name: [calls.index(call) for call in own] for name, own in dealt.items()} == {
        name: [at for at, maker in enumerate(made_by) if maker == name] for name in NAMES if name in made_by
    }


def test_a_policy_alone_learns_from_what_others_wrote() -> None:
    assert owner(transition(policy="teacher"), ["planner"]) == "planner"


def test_of_several_policies_none_learns_from_a_call_that_another_made() -> None:
    with pytest.raises(
        TrainingError, match=("a call of rollout ro was answered by policy 'teacher', which is not trained")
    ):
        owner(transition(policy="teacher"), NAMES)


def test_every_critic_is_asked_about_the_calls_of_its_own_policy() -> None:
    calls = [transition([at], policy=NAMES[at % 2]) for at in range(5)]
    critic = critic_by_policy(
        {
            "planner": lambda own: np.array([10.0 + call.prompt_ids[0] for call in own]),
            "reporter": lambda own: np.array([20.0 + call.prompt_ids[0] for call in own]),
        }
    )
    assert critic(calls).tolist() == [10.0, 21.0, 12.0, 23.0, 14.0]
