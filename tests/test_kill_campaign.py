"""Five kills of the kill campaign, and that its checks see what they are there for."""

from pathlib import Path
from typing import Any

import pytest

from kill_campaign import kill_gateway, kill_training
from kills import gateway_checks
from kills.gateway_checks import Records
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.testing import factories

ANSWER = {"kind": "chat", "id": "c1", "text": "hi", "attempt": "r-a1", "time": 20.0, "question": "?"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_training_run_survives_two_kills(tmp_path: Path) -> None:
    happened, wrong = kill_training(tmp_path, 2, 3, lambda: None)
    assert not any(wrong.values()), wrong
    assert (happened["drivers killed"], happened["workers killed"]) == (1, 1)
    assert happened["rollouts"] >= 16 * happened["steps"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_gateway_survives_three_kills(tmp_path: Path) -> None:
    happened, wrong = kill_gateway(tmp_path, 3, 1, lambda: None)
    assert not any(wrong.values()), wrong
    assert happened["answers received in full"] > 0


def span(call: str = "c1", text: str = "hi", **more: Any) -> Span:
    attributes: Attributes = {
        semconv.CALL_ID: call,
        semconv.RESPONSE_ID: call,
        semconv.FINGERPRINT: "f",
        semconv.RESPONSE_IDS: pack_ids(list(text.encode())),
        **more,
    }
    return factories.span(
        "chat",
        attributes,
        rollout_id="r",
        attempt_id="r-a1",
        span_id=call.rjust(16, "0"),
        status=SpanStatus(code="ok"),
        end_time=2.0,
    )


def records(*spans: Span, **more: Any) -> Records:
    given: dict[str, Any] = {"answers": [ANSWER], "began": {"c1": 0}, "lives": [0.0, 10.0]}
    return Records(spans=list(spans), **{**given, **more})


def test_a_record_that_is_as_it_should_be_is_not_complained_about() -> None:
    kept = records(span())
    assert gateway_checks.answers_lost(kept) == []
    assert gateway_checks.answered_twice(kept) == []
    assert gateway_checks.calls_unrecorded(kept) == []
    assert gateway_checks.given_again(kept) == 1, "its gateway was killed at 10, and it arrived at 20"


@pytest.mark.parametrize(
    "spans", [[], [span(), span()], [span(text="ho")], [span(**{semconv.NOT_TRAINED: "client disconnected"})]]
)
def test_an_answer_that_is_not_in_the_store_once_as_it_was_is_noticed(spans: list[Span]) -> None:
    assert len(gateway_checks.answers_lost(records(*spans))) == 1


def test_a_call_with_two_answers_is_noticed() -> None:
    assert len(gateway_checks.answered_twice(records(span("c1"), span("c2")))) == 1
    assert len(gateway_checks.answered_twice(records(span(), answers=[ANSWER, ANSWER]))) == 1


def test_a_call_without_a_record_is_noticed_unless_its_gateway_was_killed() -> None:
    assert gateway_checks.calls_unrecorded(records(span(), began={"c1": 1, "killed": 0})) == []
    assert len(gateway_checks.calls_unrecorded(records(span(), began={"c1": 1, "forgotten": 1}))) == 1
    assert len(gateway_checks.calls_unrecorded(records(span(), began={}))) == 1
