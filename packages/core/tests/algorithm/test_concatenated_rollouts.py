"""Rollouts trained as one concatenated sequence: their advantages, their log and what is left out."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.account import Account
from leyden.core.algorithm.advantage_pipeline import weigh
from leyden.core.algorithm.lightning_rl import LightningRL, LightningRLConfig
from leyden.core.credit.registry import CREDIT
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import NothingToLearn, UsageError
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext

TINY = TinyShape(vocab=32, hidden=16, intermediate=32, layers=1, heads=2)


@pytest.fixture(scope="module")
def model() -> PolicyModel:
    return tiny_policy(shape=TINY)


def call(rollout: int, turn: int, prompt: list[int], model: PolicyModel) -> Transition:
    response = [4 + rollout, 5]
    logprobs = score(model, prompt + response)[len(prompt) - 1 :]
    return transition(prompt, response, logprobs, rollout_id=f"r{rollout}", span_id=f"s{rollout}{turn}")


def team(model: PolicyModel) -> TrajectoryGroup:
    """Two rollouts with rewards 1 and 0: one of a single call, one of three calls with prompts of their own."""
    long = [call(0, turn, [1 + turn, 2, 3], model) for turn in range(3)]
    return TrajectoryGroup(
        task_id="t", trajectories=(trajectory(1.0, long), trajectory(0.0, [call(1, 0, [1, 2, 3], model)]))
    )


@pytest.mark.parametrize("advantage", ["grpo", "grpo_transitions", "rloo", "turn_level", "reinforce_plus_plus"])
def test_a_rollout_is_one_call_to_the_estimator(model: PolicyModel, advantage: str) -> None:
    one_call = TrajectoryGroup(
        task_id="t", trajectories=tuple(trajectory(r, [call(n, 0, [1], model)]) for n, r in enumerate((1.0, 0.0)))
    )
    credit, estimator = CREDIT.make("uniform"), ADVANTAGE.make(advantage)
    plain = [item.advantage for item in weigh([one_call], credit, estimator).transitions]

    found = weigh([team(model)], credit, estimator, one_per_rollout=True)

    assert [item.advantage for item in found.transitions] == [plain[0]] * 3 + [plain[1]]


class Accounting(ScriptedContext):
    """A context that keeps the accounts of its batches."""

    def account(self, step: int, accounts: Sequence[Account]) -> None:
        self.accounts = accounts


async def test_a_step_logs_the_mask_and_how_far_the_contexts_differ(model: PolicyModel) -> None:
    lines: dict[str, Mapping[str, Any]] = {}
    for shape in ("transitions", "concatenated"):
        policy = tiny_policy(shape=TINY)
        context = ScriptedContext(policy, iter([[team(policy)]]), steps=1)
        config = LightningRLConfig(learning_rate=1e-3, trajectory=shape, correction="recomputed")
        await LightningRL(config).run(context)
        lines[shape] = context.lines[0]
    apart, joined = lines["transitions"], lines["concatenated"]

    assert apart["importance_ratio_deviation"] < 1e-3 < 1e-2 < joined["importance_ratio_deviation"]
    assert apart["sequences"] == 4
    assert joined["sequences"] == joined["concatenated_sequences"] == 2
    assert apart["tokens_trained"] == joined["tokens_trained"] == 8
    assert joined["masked_share"] == pytest.approx(12 / 20)
    assert joined["calls_out_of_context"] == 2
    assert not any(name.startswith("concatenated") for name in apart)


async def test_calls_beyond_the_context_are_left_out_with_their_reason() -> None:
    policy = tiny_policy(shape=TINY)
    policy.config.max_position_embeddings = 10
    context = Accounting(policy, iter([[team(policy)]]), steps=1)
    await LightningRL(LightningRLConfig(learning_rate=1e-3, trajectory="concatenated")).run(context)

    assert context.lines[0]["calls_left_out/beyond the context of its sequence"] == 1
    assert context.lines[0]["tokens_trained"] == 6
    (account,) = context.accounts
    assert account.calls == {"beyond the context of its sequence": ["s02"]}
    assert sorted(account.trained) == ["r0", "r1"]


async def test_a_batch_of_which_nothing_fits_is_no_step() -> None:
    policy = tiny_policy(shape=TINY)
    groups = [team(policy)]
    policy.config.max_position_embeddings = 4
    context = Accounting(policy, iter([groups]), steps=1)
    config = LightningRLConfig(learning_rate=1e-3, trajectory="concatenated", max_empty_batches=1)
    with pytest.raises(NothingToLearn, match="4 × beyond the context of its sequence"):
        await LightningRL(config).run(context)
    (account,) = context.accounts
    assert account.trained == []
    assert account.rollouts == {"beyond the context of its sequence": ["r0", "r1"]}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"credit": "discounted"}, "so credit must be uniform"),
        ({"credit": {"name": "dimensions", "weights": {"x": 1.0}, "base": "final"}}, "so credit must be uniform"),
        ({"advantage": "gae", "critic": "own"}, "a critic values each call"),
    ],
)
def test_credit_for_single_calls_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LightningRL(LightningRLConfig(trajectory="concatenated", **config))
    LightningRL(LightningRLConfig(trajectory="concatenated", credit={"name": "dimensions", "weights": {"x": 1.0}}))
