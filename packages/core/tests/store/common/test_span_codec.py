"""Spans at rest: how little is kept, and that it is whole again."""

import gc
import sqlite3
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids
from leyden.core.data.rollout import Attempt
from leyden.core.data.sampling import Sampling, recorded_sampling
from leyden.core.data.span import Attributes, Span
from leyden.core.errors import StoreError
from leyden.core.store.common.rows import AttemptKey, SpanRow
from leyden.core.store.common.span_codec import LATEST, RecentCalls, whole_spans
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.store_contract.conversations import conversation
from leyden.core.testing.store_contract.shared import claimed, span_of

ATTEMPT = Attempt(rollout_id="ro", attempt_id="at", sequence_id=1, start_time=0.0, status="running")


def row(latest: RecentCalls, span: Span) -> SpanRow:
    return latest.rows([(span, False)])[0]


def at_rest(spans: Sequence[Span], limit: int = 1 << 20) -> list[SpanRow]:
    latest = RecentCalls(limit)
    rows: list[SpanRow] = []
    for span in spans:
        rows.append(row(latest, span))
        latest.note([span])
    return rows


def nothing(_: AttemptKey) -> list[SpanRow]:
    raise AssertionError("all that is needed is here")


def test_a_conversation_costs_its_unique_tokens() -> None:
    spans = conversation(ATTEMPT, 30)
    rows = at_rest(spans)
    unique = 100 + 30 * (40 + 30)
    tokens_and_messages = 8 * unique + len(str(spans[-1].attributes[semconv.INPUT_MESSAGES]))
    others = sum(len(row.body) for row in at_rest([replace(span, attributes={}) for span in spans]))
    assert sum(len(row.body) for row in rows) < 1.5 * tokens_and_messages + others
    assert sum(len(row(RecentCalls(), span).body) for span in spans) > 8 * tokens_and_messages
    assert whole_spans(rows, nothing) == spans


def test_calls_that_come_together_are_built_on_each_other_and_no_earlier_ones_where_these_may_be_gone() -> None:
    spans, latest = conversation(ATTEMPT, 12), RecentCalls()
    together = latest.rows((span, False) for span in spans)
    assert [row.body for row in together] == [row.body for row in at_rest(spans)]
    latest.note(spans[:6])
    late = latest.rows((span, True) for span in spans[6:])
    assert whole_spans(late, nothing) == spans[6:]


def test_the_nearest_of_the_latest_calls_is_built_on() -> None:
    talks = [conversation(ATTEMPT, 4, agent=f"agent {n}", first=20_000 * n) for n in range(LATEST)]
    rows = at_rest([span for turn in zip(*talks, strict=True) for span in turn])
    first = sum(len(row.body) for row in rows[:LATEST])
    assert all(sum(len(row.body) for row in rows[n * LATEST :][:LATEST]) < 0.8 * first for n in (1, 2, 3))


def test_beyond_the_limit_the_attempt_that_was_silent_for_longest_is_forgotten() -> None:
    latest = RecentCalls(limit=20_000)
    for n in range(50):
        attempt = Attempt(rollout_id=f"ro{n}", attempt_id="at", sequence_id=1, start_time=0.0, status="running")
        one, two = conversation(attempt, 2)
        latest.note([one])
        assert len(row(latest, two).body) < len(row(RecentCalls(), two).body)
    forgotten = conversation(
        Attempt(rollout_id="ro0", attempt_id="at", sequence_id=1, start_time=0.0, status="running"), 2
    )[1]
    assert row(latest, forgotten) == row(RecentCalls(), forgotten)


def test_a_call_that_says_nothing_known_is_kept_as_it_is() -> None:
    other: Attributes = {semconv.PROMPT_IDS: pack_ids(range(5000, 5100)), semconv.TOOL_DEFINITIONS: "x" * 100}
    span = replace(span_of(ATTEMPT, "ff"), attributes=other)
    assert at_rest([conversation(ATTEMPT, 1)[0], span])[1] == row(RecentCalls(), span)


def with_grammars(grammars: Sequence[str], turns: int) -> list[Span]:
    """Calls of agents that take turns, each with a seed of its own and its agent's grammar."""
    spans = conversation(ATTEMPT, turns)
    return [
        replace(span, attributes=span.attributes | Sampling(grammar=grammars[n % len(grammars)], seed=n).recorded())
        for n, span in enumerate(spans)
    ]


def test_a_grammar_costs_its_text_once_also_if_agents_with_other_grammars_take_turns() -> None:
    grammars = [f"start: /{letter * 5000}/" for letter in "abc"]
    spans = with_grammars(grammars, 12)
    rows = at_rest(spans)
    plain = at_rest(with_grammars(['start: "a"'], 12))
    more = [len(row.body) - len(other.body) for row, other in zip(rows, plain, strict=True)]

    assert all(5000 < size < 5300 for size in more[:3])
    assert all(size < 200 for size in more[3:])
    assert whole_spans(rows, nothing) == spans
    assert whole_spans(rows[-1:], lambda _: rows) == spans[-1:]
    assert [recorded_sampling(span.attributes) for span in whole_spans(rows, nothing)] == [
        Sampling(grammar=grammars[n % 3], seed=n) for n in range(12)
    ]


def test_spans_that_are_named_are_looked_up_once_for_each_attempt() -> None:
    spans = conversation(ATTEMPT, 9)
    rows, asked = at_rest(spans), list[AttemptKey]()

    def all_of(attempt: AttemptKey) -> list[SpanRow]:
        asked.append(attempt)
        return rows

    assert whole_spans(rows[-2:], all_of) == spans[-2:]
    assert asked == [("ro", "at")]


def test_a_span_whose_base_was_removed_by_other_means_is_an_error() -> None:
    rows = at_rest(conversation(ATTEMPT, 3))
    with pytest.raises(StoreError, match="is not in the store"):
        whole_spans(rows[1:], lambda _: rows[1:])


def test_a_conversation_longer_than_pythons_stack_is_read() -> None:
    prompt = list(range(40))
    spans: list[Span] = []
    for turn in range(1500):
        attributes: Attributes = {semconv.PROMPT_IDS: pack_ids(prompt), semconv.RESPONSE_IDS: pack_ids([turn])}
        spans.append(replace(span_of(ATTEMPT, f"{turn:x}"), attributes=attributes))
        prompt = [*prompt[-64:], turn] if turn % 100 == 99 else [*prompt, turn]
    assert whole_spans(at_rest(spans)[-1:], lambda _: at_rest(spans)) == spans[-1:]


_VALUES = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200),
    st.integers(-5, 5),
    st.integers(1, 5).map(lambda n: b"0123456789abcdef" * n * 8),
    st.integers(1, 5).map(lambda n: "tüöl" * n * 32),
)
_NAMES = st.sampled_from(
    [
        semconv.PROMPT_IDS,
        semconv.RESPONSE_IDS,
        semconv.INPUT_MESSAGES,
        semconv.SAMPLING_GRAMMAR,
        semconv.TOOL_DEFINITIONS,
        "x",
        semconv.RESPONSE_LOGPROBS,
        semconv.SAMPLING_LOGPROBS,
    ]
)


@given(st.lists(st.dictionaries(_NAMES, _VALUES, max_size=5), max_size=8))
def test_whatever_attributes_hold_they_are_read_as_they_were(many: list[Attributes]) -> None:
    spans = [replace(span_of(ATTEMPT, f"{n:x}"), attributes=attributes) for n, attributes in enumerate(many)]
    assert whole_spans(at_rest(spans), nothing) == spans


async def test_a_rollout_of_thirty_turns_on_disk(tmp_path: Path) -> None:
    """By what the file grows for many of them: within 1.5 times its unique tokens at 8 bytes, plus what was said."""
    store = await SqlStore.open(tmp_path / "store.db")
    sizes: list[int] = []
    for _ in range(2):
        for _ in range(20):
            got = await claimed(store)
            for span in conversation(got.attempt, 30):
                await store.add_span(span)
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append((tmp_path / "store.db").stat().st_size)
    await store.close()
    said = len(str(conversation(ATTEMPT, 30)[-1].attributes[semconv.INPUT_MESSAGES]))
    rest = 30 * 600  # ids, times, names, indexes: what thirty spans without any tokens take
    assert (sizes[1] - sizes[0]) / 20 < 1.5 * 8 * (100 + 30 * 70) + said + rest


@pytest.mark.parametrize("calls", [1, 2, LATEST])
@pytest.mark.parametrize("length", [4, 2000])
def test_the_cache_takes_no_more_memory_than_its_limit(calls: int, length: int) -> None:
    limit = 2 << 20
    tracemalloc.start()
    try:
        latest = RecentCalls(limit)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(limit // (calls * (length + 500))):
            attempt = replace(ATTEMPT, rollout_id=f"ro-{number}", attempt_id=f"ro-{number}-a1")
            for span_id in range(calls):
                ids = pack_ids([number % 50_000] * length)
                attributes: Attributes = {semconv.PROMPT_IDS: ids, semconv.RESPONSE_IDS: ids[:64], "number": number}
                latest.note([replace(span_of(attempt, f"{span_id}"), attributes=attributes)])
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert limit / 2 < taken < 1.1 * limit
