from typing import Any

import pytest

from leyden.core.data.failure import Failure, failure_of
from leyden.core.data.rollout import Attempt, AttemptStatus


def attempt(status: AttemptStatus, **metadata: Any) -> Attempt:
    return Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=0.0, status=status, metadata=metadata)


@pytest.mark.parametrize("status", ["preparing", "running", "succeeded"])
def test_an_attempt_that_did_not_end_badly_has_no_failure(status: AttemptStatus) -> None:
    assert failure_of(attempt(status, error={"kind": "agent", "type": "E", "message": "of an earlier life"})) is None


def test_what_is_noted_is_read_back() -> None:
    noted = Failure(kind="leyden", type="TypeError", message="result cannot be recorded")
    assert failure_of(attempt("failed", error=noted.metadata())) == noted


@pytest.mark.parametrize(
    ("status", "kind"), [("failed", "unknown"), ("timeout", "timeout"), ("unresponsive", "worker")]
)
@pytest.mark.parametrize("noted", [None, "a text of somebody else's"])
def test_an_ending_without_a_reason_says_that_there_is_none(status: AttemptStatus, kind: str, noted: Any) -> None:
    failure = failure_of(attempt(status, error=noted))
    assert failure is not None
    assert (failure.kind, failure.type) == (kind, status)
    assert failure.text


@pytest.mark.parametrize(
    ("kind", "message", "text"),
    [
        ("agent", "bad\n  day", "ValueError: bad day"),
        ("agent", "", "ValueError"),
        ("timeout", "no result within 2 s", "no result within 2 s"),
        ("worker", "", "ValueError"),
    ],
)
def test_a_failure_as_one_line(kind: Any, message: str, text: str) -> None:
    assert Failure(kind=kind, type="ValueError", message=message).text == text
