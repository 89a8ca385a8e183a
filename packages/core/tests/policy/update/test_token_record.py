"""Records of trained tokens; that their numbers are right is `test_invariance.py`'s."""

import math

import numpy as np
import pytest

from leyden.core.errors import RunError
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.token_record import NAMES, PolicyTokens, TrainedCall, calls_of, decode, encode
from leyden.core.policy.update.updater import Updater, UpdateReport
from leyden.core.testing.policies import synthetic_rollouts, tiny_policy


def step(count: int = 6, **values: object) -> tuple[list[WeightedTransition], UpdateReport]:
    trained = synthetic_rollouts(count, 64, 0, single_call_share=0.3)
    return trained, Updater(tiny_policy(), UpdateConfig(learning_rate=1e-3, **values)).step(trained)  # type: ignore[arg-type]


def summed(calls: list[TrainedCall]) -> float:
    return math.fsum(loss for call in calls for loss in call.numbers.losses)


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (1, 3), (2, 1), (3, 4)])
def test_the_losses_of_all_tokens_add_up_to_the_logged_loss(epochs: int, minibatches: int) -> None:
    trained, report = step(epochs=epochs, minibatches=minibatches)

    assert summed(report.calls) == pytest.approx(report.loss, abs=1e-6)
    assert len(report.calls) == len(trained)
    assert [len(call.numbers.losses) for call in report.calls] == [
        len(call.transition.response_ids) for call in report.calls
    ]


def test_numbers_of_a_repeated_token_are_those_of_the_first_pass() -> None:
    _, once = step()
    _, thrice = step(epochs=3)

    for one, other in zip(once.calls, thrice.calls, strict=True):
        assert one.transition.span_id == other.transition.span_id
        assert np.array_equal(one.numbers.logprobs, other.numbers.logprobs)
        assert not np.array_equal(one.numbers.losses, other.numbers.losses)


def test_a_masked_token_has_no_weight_and_no_loss() -> None:
    _, report = step(correction={"name": "masked", "low": 0.9, "high": 1.1})

    numbers = [call.numbers for call in report.calls]
    masked = np.concatenate([own.weights for own in numbers]) == 0.0
    assert 0 < masked.sum() < len(masked)
    assert not np.concatenate([own.losses for own in numbers])[masked].any()


def test_a_record_is_read_as_it_was_written() -> None:
    _, report = step()
    record = {"policy": report.token_record()}

    (own,) = decode(encode(record)).values()

    assert (own.loss, own.optimizer_steps) == (report.loss, 1)
    for call, written in zip(report.calls, own.calls, strict=True):
        assert written.span_id == call.transition.span_id
        for name in NAMES:
            found, expected = getattr(written.numbers(), name), getattr(call.numbers, name)
            assert np.array_equal(found, expected.astype(np.float32), equal_nan=True)


def test_a_call_is_found_in_the_record_of_every_side() -> None:
    _, report = step()
    own = report.token_record()
    attempt, wanted = own.calls[1].attempt_id, own.calls[1].span_id

    found = list(calls_of({"a": own, "b": own}, attempt, wanted))

    assert [(name, call.span_id) for name, _, call in found] == [("a", wanted), ("b", wanted)]
    assert not list(calls_of({"a": own}, attempt, "another"))
    assert not list(calls_of({"a": own}, "another", wanted))


@pytest.mark.parametrize(
    "data",
    [b"", b"no zlib", encode({})[:-3], encode({"policy": PolicyTokens(loss=1.0, optimizer_steps=1, calls=[])})[:-6]],
)
def test_a_damaged_record_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        decode(data)
