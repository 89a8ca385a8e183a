"""Calls whose sampling cannot be recomputed: counted and named, while the other calls of a batch are trained."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.data.encoding.images import PromptImage, digest_of
from leyden.core.data.reasons import IMAGES_NOT_READ, NO_CALL_LEFT, NOT_RECOMPUTED
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import NothingToLearn
from leyden.core.policy.model import PolicyModel
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.finite_language import SIZE, FiniteLanguage
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext

GRAMMAR = 'start: "ab" | "b"'
FITTING, MISFIT = Sampling(grammar=GRAMMAR), Sampling(grammar='start: "c"')
RATE = {"learning_rate": 1e-3}


class AccountingContext(ScriptedContext):
    """Keeps the accounts of the steps."""

    def account(self, step: int, accounts: Sequence[Account]) -> None:
        del step
        self.accounts = [*getattr(self, "accounts", []), *accounts]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    folder: Path = FiniteLanguage.save(tmp_path_factory.mktemp("policy"))
    return PolicyModel(tiny_policy(shape=TinyShape(vocab=SIZE, layers=1)).module, folder)


def answered(model: PolicyModel, name: str, reward: float, *samplings: Sampling | None) -> Trajectory:
    """Calls that answered `b` after one prompt, with its end token only if it was rewarded."""
    language = FiniteLanguage(Path(model.source), ["ab", "b"])
    b = next(token for token in language.allowed([]) if language.text([token]) == b"b")
    end = language.ends[0]
    response = [b, end] if reward else [b]
    calls = [
        transition(
            [5, 6, 7], response, rollout_id=name, span_id=f"{name}-{n}", call_id=f"{name}-{n}", sampling=sampling
        )
        for n, sampling in enumerate(samplings)
    ]
    return trajectory(reward, calls, rollout_id=name)


def run(model: PolicyModel, algorithm: str, config: dict[str, object], *made: Trajectory) -> AccountingContext:
    context = AccountingContext(model, [[TrajectoryGroup(task_id="t", trajectories=made)]], steps=1)
    asyncio.run(make_algorithm(algorithm, {**RATE, **config}).run(context))
    return context


@pytest.mark.parametrize("algorithm", ["lightning_rl", "sft", "dpo"])
def test_the_other_calls_of_the_batch_are_trained(
    model: PolicyModel, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = run(
        model,
        algorithm,
        {"above": 0.5} if algorithm == "sft" else {},
        answered(model, "r0", 1.0, FITTING, MISFIT, None),
        answered(model, "r1", 0.0, FITTING),
        answered(model, "r2", 0.0, MISFIT),
    )
    (account,) = context.accounts

    assert context.step == 1
    assert "r0" in account.trained
    assert account.calls[NOT_RECOMPUTED] == ["r0-1", "r2-0"]
    assert "r2" not in account.trained
    assert algorithm == "sft" or "r2" in account.rollouts[NO_CALL_LEFT]
    assert "2 calls are not trained, because they cannot be recomputed; the first: call r0-1" in caplog.text


@pytest.mark.parametrize("algorithm", ["lightning_rl", "sft", "dpo"])
def test_a_batch_in_which_nothing_is_left_takes_no_step(model: PolicyModel, algorithm: str) -> None:
    made = [answered(model, "r0", 1.0, MISFIT), answered(model, "r1", 0.0, MISFIT)]

    with pytest.raises(NothingToLearn):
        run(model, algorithm, {"max_empty_batches": 1, **({"above": 0.5} if algorithm == "sft" else {})}, *made)


def test_calls_with_images_that_the_policy_cannot_read_are_left_out_and_named(
    model: PolicyModel, caplog: pytest.LogCaptureFixture
) -> None:
    image = PromptImage(digest=digest_of(b"a picture"), data=b"a picture", start=0, tokens=2)
    good = answered(model, "r0", 1.0, None, None)
    seen = replace(good, transitions=(replace(good.transitions[0], images=(image,)), good.transitions[1]))

    context = run(model, "lightning_rl", {}, seen, answered(model, "r1", 0.0, None))

    (account,) = context.accounts
    assert account.calls == {IMAGES_NOT_READ: ["r0-0"]}
    assert "1 calls are not trained, because they cannot be recomputed" in caplog.text
    assert "reads no images" in caplog.text


def test_without_such_calls_nothing_is_checked(model: PolicyModel) -> None:
    context = run(model, "lightning_rl", {}, answered(model, "r0", 1.0, None), answered(model, "r1", 0.0, None))

    assert "check sampling" not in [phase for phase, _ in context.computed]
