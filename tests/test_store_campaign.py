"""A few kills of the store campaign, and that its checks see what they are there for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kills import store_checks
from kills.journal import note, read
from kills.store_backends import BACKENDS, MISSING
from kills.store_checks import Kept
from leyden.core.data.rollout import Attempt, Rollout, RolloutConfig, RolloutStatus
from leyden.core.testing import factories
from store_campaign import kill_store


def run(backend: str, rounds: int) -> Mapping[str, Any]:
    if (reason := MISSING[backend]()) is not None:
        pytest.skip(reason)
    happened, wrong = kill_store(backend, rounds, 1, lambda: None)
    assert not any(wrong.values()), wrong
    assert happened["acknowledgements noted"] > 100
    return happened


@pytest.mark.long
@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_two_kills_lose_nothing(backend: str) -> None:
    happened = run(backend, 2)
    assert (happened["servers killed"], happened["writers killed"]) == (1, 1)


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_five_kills_lose_nothing(backend: str) -> None:
    happened = run(backend, 5)
    assert (happened["servers killed"], happened["writers killed"]) == (3, 2)


CLAIM = {"kind": "claim", "rollout": "r", "attempt": "r-a1"}
SPAN = {"kind": "span", "rollout": "r", "span": "s1", "number": 1}


def kept(status: RolloutStatus = "succeeded", numbers: tuple[int, ...] = (1, 2), queue_length: int = 0) -> Kept:
    rollout = Rollout(rollout_id="r", input=1, start_time=1.0, status=status, config=RolloutConfig(), metadata={})
    attempt = Attempt(rollout_id="r", attempt_id="r-a1", sequence_id=1, start_time=1.0, status="succeeded")
    spans = [
        factories.span("chat", {}, rollout_id="r", attempt_id="r-a1", span_id=f"s{n}", sequence_id=number)
        for n, number in enumerate(numbers, 1)
    ]
    return Kept({"r": rollout}, {"r": [attempt]}, {"r": spans}, {"queue_length": queue_length})


def test_a_store_that_is_as_it_should_be_is_not_complained_about() -> None:
    assert store_checks.lost([CLAIM, SPAN, {"kind": "error", "rollout": ""}], kept()) == []
    assert store_checks.claimed_twice([CLAIM, SPAN]) == []
    assert store_checks.unfinished(kept()) == []
    assert store_checks.out_of_order(kept()) == []


@pytest.mark.parametrize(
    "event",
    [{**CLAIM, "attempt": "r-a2"}, {**SPAN, "span": "s3"}, {**SPAN, "number": 2}, {"kind": "rollout", "rollout": "q"}],
)
def test_what_was_acknowledged_and_is_not_there_is_noticed(event: dict[str, Any]) -> None:
    assert len(store_checks.lost([event], kept())) == 1


def test_what_errors_said_is_told_by_its_kind() -> None:
    texts = ["the store at http://127.0.0.1:4711 does not answer", "the store at http://127.0.0.1:815 does not answer"]
    texts.append("there is no rollout ro-0123456789abcdef")
    events = [{"kind": "error", "text": text} for text in texts]
    assert store_checks.told([CLAIM, *events]) == {
        "the store at http://… does not answer": 2,
        "there is no rollout …": 1,
    }


def test_what_was_given_out_twice_left_over_or_numbered_wrongly_is_noticed() -> None:
    assert len(store_checks.claimed_twice([CLAIM, CLAIM])) == 1
    assert len(store_checks.unfinished(kept("running"))) == 1
    assert len(store_checks.unfinished(kept(queue_length=1))) == 1
    assert len(store_checks.out_of_order(kept(numbers=(1, 3)))) == 1
    assert len(store_checks.out_of_order(kept(numbers=(1, 1)))) == 1


def test_a_writer_that_is_killed_in_the_middle_of_a_line_leaves_the_others_of_the_journal_whole(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    note(journal, kind="open", writer="w1")
    with journal.open("ab") as file:
        file.write(b'\n{"kind": "span", "rollout": "ro-f1')
    note(journal, kind="open", writer="w2")
    assert read(journal) == [{"kind": "open", "writer": "w1"}, {"kind": "open", "writer": "w2"}]
