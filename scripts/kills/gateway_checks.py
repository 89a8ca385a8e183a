"""What must hold of a gateway's records however often it was killed. Looks only at what lies on the disk afterwards."""

from bisect import bisect
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kills.journal import read
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.data.span import Span
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.trajectory.calls import is_recorded_call

CUT = {"chat stream", "responses stream"}
"""What a client cannot ask for again by itself once it has begun to arrive."""


@dataclass
class Records:
    """What client, engine and store have kept."""

    answers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What clients received in full."""
    lost: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Calls that clients gave up."""
    began: dict[str, int] = field(default_factory=dict[str, int])
    """Calls that the engine began, and in which life of the gateway."""
    ended: set[str] = field(default_factory=set[str])
    """Calls that the engine drew to their end."""
    spans: list[Span] = field(default_factory=list[Span])
    lives: list[float] = field(default_factory=list[float])


async def read_records(store: Path, journal: Path, engine_log: Path, lives: list[float]) -> Records:
    """Read everything that a campaign has left."""
    client, engine = read(journal), read(engine_log)
    records = Records(
        answers=[event for event in client if event["event"] == "answer"],
        lost=[event for event in client if event["event"] == "lost"],
        began={event["call"]: event["life"] for event in engine if event["event"] == "begins"},
        ended={event["call"] for event in engine if event["event"] == "ends"},
        lives=lives,
    )
    opened = await open_store(f"sqlite:///{store}", clock=lambda: 0.0)
    try:
        for rollout in await opened.query_rollouts():
            records.spans += filter(is_recorded_call, (await opened.query_spans(rollout.rollout_id)).items)
    finally:
        await opened.close()
    return records


def answers_lost(records: Records) -> list[str]:
    """Answers that a client received in full and that are not in the store once, as they were, under its attempt."""
    stored: dict[str, list[tuple[str, str, bool]]] = defaultdict(list)
    for span in records.spans:
        trained = semconv.NOT_TRAINED not in span.attributes
        stored[str(span.attributes[semconv.RESPONSE_ID])].append((span.attempt_id, _text(span), trained))
    return [
        f"{answer['kind']} answer {answer['id']} with {answer['text']!r} is recorded as {stored[answer['id']]}"
        for answer in records.answers
        if stored[answer["id"]] != [(answer["attempt"], answer["text"], True)]
    ]


def answered_twice(records: Records) -> list[str]:
    """Calls that were made once and have two answers: two records to train on, or one of two calls."""
    wholes = Counter(
        (span.attempt_id, span.attributes[semconv.FINGERPRINT])
        for span in records.spans
        if semconv.NOT_TRAINED not in span.attributes
    )
    given = Counter(answer["id"] for answer in records.answers)
    wrong = [f"call {mark} of attempt {attempt} has {n} answers" for (attempt, mark), n in wholes.items() if n > 1]
    return wrong + [f"answer {name} was given to {n} calls" for name, n in given.items() if n > 1]


def calls_given_up(records: Records) -> list[str]:
    """Calls that a client gave up although it could have tried again."""
    return [
        f"{lost['kind']} call {lost['question']}: {lost['error']}" for lost in records.lost if lost["kind"] not in CUT
    ]


def calls_unrecorded(records: Records) -> list[str]:
    """Calls of the engine that have no record although their gateway was not killed, and records of no call."""
    recorded = {str(span.attributes[semconv.CALL_ID]) for span in records.spans}
    last = len(records.lives) - 1
    wrong = [f"call {call} was never recorded" for call in records.began if call not in recorded]
    wrong = [line for line in wrong if records.began[line.split()[1]] == last]
    return wrong + [f"record {call} is of no call" for call in recorded if call not in records.began]


def given_again(records: Records) -> int:
    """Answers that a life of the gateway recorded, and a later one gave to the client."""
    return sum(
        records.began[answer["id"]] < bisect(records.lives, answer["time"]) - 1
        for answer in records.answers
        if answer["id"] in records.began
    )


def drawn_again(records: Records) -> int:
    """Calls of the engine that a kill interrupted: they have no record, and their clients asked again or were cut."""
    recorded = {str(span.attributes[semconv.CALL_ID]) for span in records.spans}
    return sum(call not in recorded for call in records.began)


def _text(span: Span) -> str:
    drawn = span.attributes.get(semconv.RESPONSE_IDS, b"")
    assert isinstance(drawn, bytes)
    return ByteCodec().decode(list(unpack_ids(drawn)))
