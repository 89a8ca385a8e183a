"""Store contract, conversations: calls that repeat earlier messages are read back whole, in any query."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio

from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.rollout import Attempt
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Attributes, Span
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import StoreTests, claimed, span_of

TOOLS = '[{"type": "function", "function": {"name": "search", "description": "Look something up, anywhere."}}]'


def conversation(attempt: Attempt, turns: int, *, agent: str = "solver", first: int = 0) -> list[Span]:
    """Return calls of an agent, each with the whole conversation before it; ids and text differ between agents."""
    messages = [{"role": "system", "content": f"You are {agent}, and answer with what you find. " * 3}]
    ids = list(range(first, first + 100))
    spans: list[Span] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn} of {agent}"})
        ids += range(first + 1000 * turn, first + 1000 * turn + 40)
        answer = list(range(first + 7000 + turn, first + 7030 + turn))
        logprobs = pack_log_probs([-0.5 - turn / 64] * 30)
        attributes: Attributes = {
            semconv.OPERATION: "chat",
            semconv.AGENT_NAME: agent,
            semconv.INPUT_MESSAGES: str(messages),
            semconv.TOOL_DEFINITIONS: TOOLS,
            semconv.PROMPT_IDS: pack_ids(ids),
            semconv.RESPONSE_IDS: pack_ids(answer),
            semconv.RESPONSE_LOGPROBS: logprobs,
            semconv.SAMPLING_LOGPROBS: logprobs if turn % 2 else pack_log_probs([-0.25] * 30),
        }
        spans.append(replace(span_of(attempt, f"{first + turn:x}"), attributes=attributes))
        ids += answer
        messages.append({"role": "assistant", "content": f"Answer {turn}"})
    return spans


class ConversationTests(StoreTests):
    """Spans that begin like earlier spans."""

    async def test_every_call_of_a_long_conversation_reads_back_whole(self, store: LightningStore) -> None:
        got = await claimed(store)
        written = conversation(got.attempt, 30)
        for span in written:
            assert await store.add_span(span) is not None
        page = await store.query_spans(got.rollout_id)
        assert [span.attributes for span in page] == [span.attributes for span in written]

    async def test_a_single_call_and_any_page_read_back_whole(self, store: LightningStore) -> None:
        got = await claimed(store)
        written = conversation(got.attempt, 12)
        for span in written:
            await store.add_span(span)
        [last] = await store.query_spans(got.rollout_id, span_id=written[-1].span_id)
        assert last.attributes == written[-1].attributes
        newest = await store.query_spans(got.rollout_id, "latest", sort_order="desc", limit=3, offset=1)
        assert [span.attributes for span in newest] == [span.attributes for span in written[-2:-5:-1]]

    async def test_agents_that_talk_in_turns_or_at_once_are_kept_apart(self, store: LightningStore) -> None:
        got = await claimed(store)
        talks = [conversation(got.attempt, 6, agent=name, first=20_000 * n) for n, name in enumerate("abc")]
        for turn in zip(*talks, strict=True):
            await asyncio.gather(*(store.add_span(span) for span in turn))
        found = {span.span_id: span.attributes for span in await store.query_spans(got.rollout_id)}
        assert found == {span.span_id: span.attributes for talk in talks for span in talk}

    async def test_grammars_of_agents_that_talk_in_turns_read_back_whole(self, store: LightningStore) -> None:
        got = await claimed(store)
        grammars = [f"start: /{letter * 600}/" for letter in "abc"]
        written = [
            replace(span, attributes=span.attributes | Sampling(grammar=grammars[n % 3], seed=n).recorded())
            for n, span in enumerate(conversation(got.attempt, 9))
        ]
        for span in written:
            await store.add_span(span)
        page = await store.query_spans(got.rollout_id)
        assert [span.attributes for span in page] == [span.attributes for span in written]
        [last] = await store.query_spans(got.rollout_id, span_id=written[-1].span_id)
        assert last.attributes == written[-1].attributes

    async def test_a_later_attempt_does_not_lean_on_an_earlier_one(self, store: LightningStore) -> None:
        first = await claimed(store)
        again = await store.start_attempt(first.rollout_id)
        for attempt in (first.attempt, again.attempt):
            for span in conversation(attempt, 3):
                await store.add_span(span)
        for attempt in (first.attempt, again.attempt):
            page = await store.query_spans(first.rollout_id, attempt.attempt_id)
            assert [span.attributes for span in page] == [span.attributes for span in conversation(attempt, 3)]

    async def test_what_comes_together_or_was_refused_is_nothing_to_lean_on(self, store: LightningStore) -> None:
        """All in one batch; then a call whose batch was refused is stored after one with the same beginning."""
        got = await claimed(store)
        written = conversation(got.attempt, 8)
        await store.add_many_spans(written[:4])
        refused = replace(written[5], rollout_id="ro-missing")
        results = await asyncio.gather(
            store.add_many_spans([written[4], refused]), store.add_many_spans(written[4:5]), return_exceptions=True
        )
        assert isinstance(results[0], Exception)
        for span in written[5:]:
            await store.add_span(span)
        page = await store.query_spans(got.rollout_id)
        assert [span.attributes for span in page] == [span.attributes for span in written]
