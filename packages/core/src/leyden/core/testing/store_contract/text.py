"""Store contract, unusual text: refused in ids and names before anything is written, and kept in documents.

A lone surrogate is no character. A NUL is one, but PostgreSQL cannot store it in an id or a name.
"""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids
from leyden.core.data.resources import NamedResources, PromptTemplate
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.text import MOST_BYTES_OF_AN_ID
from leyden.core.testing.store_contract.shared import StoreTests, attempt_now, claimed, span_of, taken

HALF, NUL = "\ud800", "\0"
ODD = pytest.mark.parametrize("odd", [f"a{HALF}b", f"a{NUL}b"], ids=["half a pair", "NUL"])
Call = Callable[[LightningStore, Any], Awaitable[object]]
_ATTEMPT = ("ro-1", "ro-1-a1")

CONTENTS: dict[str, Call] = {
    "resources": lambda store, odd: store.add_resources({"prompt": PromptTemplate(template=odd)}),
    "name of a resource": lambda store, odd: store.update_resources("rs-1", {odd: PromptTemplate(template="t")}),
    "name of a number": lambda store, odd: store.add_metrics("r-1", [StepMetrics(step=1, values={odd: 1.0})]),
    "metrics of a version": lambda store, odd: store.update_policy_version("r-1", 1, metrics={odd: 1.0}),
}
"""Calls with text in resources or names of metrics, which have no field for reasons of incomplete parts."""

DOCUMENTS: dict[str, Call] = {
    "input": lambda store, odd: store.enqueue_rollout({"question": [odd]}),
    "key of an input": lambda store, odd: store.start_rollout({odd: 1}),
    "metadata": lambda store, odd: store.enqueue_rollout(1, metadata={"a": odd}),
    "metadata changed": lambda store, odd: store.update_rollout(_ATTEMPT[0], metadata={odd: 1}),
    "metadata of an attempt": lambda store, odd: store.update_attempt(*_ATTEMPT, metadata={"a": odd}),
    "statistics of a worker": lambda store, odd: store.update_worker("w-1", {"host": odd}),
    "config of a run": lambda store, odd: store.add_run(Run(run_id="r-2", name="r", config={"a": odd})),
    "metadata of a run": lambda store, odd: store.update_run("r-1", metadata={"a": odd}),
    "metadata of a version": lambda store, odd: store.update_policy_version("r-1", 1, metadata={"a": odd}),
}
"""Calls with text in documents, which a store keeps without interpreting them."""

NAMES: dict[str, Call] = {
    "rollout": lambda store, odd: store.enqueue_rollout(1, rollout_id=odd),
    "resources of a rollout": lambda store, odd: store.enqueue_rollout(1, resources_id=odd),
    "one of many": lambda store, odd: store.enqueue_many_rollouts(
        [EnqueueRollout(input=1), EnqueueRollout(input=1, rollout_id=odd)]
    ),
    "worker of a start": lambda store, odd: store.start_rollout(1, worker_id=odd),
    "worker of a claim": lambda store, odd: store.dequeue_rollout(odd),
    "worker of an attempt": lambda store, odd: store.update_attempt(*_ATTEMPT, worker_id=odd),
    "worker of a further attempt": lambda store, odd: store.start_attempt(_ATTEMPT[0], odd),
    "worker": lambda store, odd: store.update_worker(odd),
    "resources changed": lambda store, odd: store.update_rollout(_ATTEMPT[0], resources_id=odd),
    "resources": lambda store, odd: store.update_resources(odd, {}),
    "run": lambda store, odd: store.add_run(Run(run_id=odd, name="r")),
    "name of a run": lambda store, odd: store.add_run(Run(run_id="r-2", name=odd)),
    "experiment": lambda store, odd: store.update_run("r-1", experiment=odd),
    "path": lambda store, odd: store.update_policy_version("r-1", 1, path=odd),
    "note": lambda store, odd: store.add_policy_versions([PolicyVersion(run_id="r-1", version=2, note=odd)]),
    "unknown rollout": lambda store, odd: store.update_rollout(odd, input=1),
    "unknown attempt": lambda store, odd: store.update_attempt(_ATTEMPT[0], odd, worker_id="w"),
    "unknown run": lambda store, odd: store.rewind_run(odd, 1),
    "number": lambda store, odd: store.get_next_span_sequence_id(odd, "latest"),
    "spans dropped": lambda store, odd: store.drop_spans(odd),
    "rollout asked for": lambda store, odd: store.get_rollout_by_id(odd),
    "rollouts asked for": lambda store, odd: store.query_rollouts(rollout_id_in=["ro-1", odd]),
    "part of a name": lambda store, odd: store.query_rollouts(rollout_id_contains=odd),
    "attempt looked up": lambda store, odd: store.find_attempt(odd, odd),
    "attempts asked for": lambda store, odd: store.query_attempts(odd),
    "latest attempt": lambda store, odd: store.get_latest_attempt(odd),
    "spans asked for": lambda store, odd: store.query_spans(odd),
    "name of a span": lambda store, odd: store.query_spans(_ATTEMPT[0], name_contains=odd),
    "waited for": lambda store, odd: store.wait_for_rollouts(rollout_ids=[odd], timeout=0),
    "resources asked for": lambda store, odd: store.get_resources_by_id(odd),
    "worker asked for": lambda store, odd: store.get_worker_by_id(odd),
    "runs asked for": lambda store, odd: store.query_runs(experiment=odd),
    "run asked for": lambda store, odd: store.get_run_by_id(odd),
    "metrics asked for": lambda store, odd: store.query_metrics(odd),
    "versions asked for": lambda store, odd: store.query_policy_versions(policy=odd),
}
"""Calls with text in ids and names, to be stored or searched."""


async def prepared(store: LightningStore) -> list[Any]:
    """Store the objects that `CONTENTS` and `NAMES` change; return the store's whole content."""
    await store.enqueue_rollout(1, rollout_id=_ATTEMPT[0])
    await store.start_attempt(_ATTEMPT[0])
    await store.update_resources("rs-1", {})
    await store.update_worker("w-1", {})
    await store.add_run(Run(run_id="r-1", name="r"))
    await store.add_policy_versions([PolicyVersion(run_id="r-1", version=1)])
    return await everything(store)


async def everything(store: LightningStore) -> list[Any]:
    """Return the store's whole content."""
    return [
        {name: count for name, count in (await store.statistics()).items() if name != "uptime"},
        await store.query_rollouts(),
        await store.query_attempts(_ATTEMPT[0]),
        await store.query_resources(),
        await store.query_workers(),
        await store.query_runs(),
        await store.query_metrics("r-1"),
        await store.query_policy_versions(),
    ]


@contextmanager
def refused(otherwise: str) -> Generator[None]:
    """Fail, with `otherwise`, unless the block raises the error for unusual text."""
    try:
        yield
    except UsageError as error:
        assert re.search("cannot be stored: it has (half of a surrogate pair|a NUL)", str(error)), error
    else:
        pytest.fail(otherwise)


class TextTests(StoreTests):
    """Text with surrogates and NULs."""

    async def test_half_a_pair_is_kept_as_what_it_is_not_and_noted(self, store: LightningStore) -> None:
        await prepared(store)
        for what, call in DOCUMENTS.items():
            kept = msgspec.msgpack.encode(await call(store, f"a{HALF}b"))
            assert "a\ufffdb".encode() in kept and semconv.REDUCED.encode() in kept, what
        await store.add_metrics("r-1", [StepMetrics(step=1, notes={"alert": f"a{HALF}b"})])
        ((found,),) = (await store.query_metrics("r-1"),)
        assert found.notes["alert"] == "a\ufffdb" and "surrogate" in found.notes[semconv.REDUCED]

    async def test_half_a_pair_is_refused_in_what_agents_work_with(self, store: LightningStore) -> None:
        before = await prepared(store)
        for what, call in CONTENTS.items():
            with refused(f"{what} was stored"):
                await call(store, f"a{HALF}b")
        assert await everything(store) == before

    @ODD
    async def test_odd_text_is_refused_in_an_id_or_a_name(self, store: LightningStore, odd: str) -> None:
        before = await prepared(store)
        for what, call in NAMES.items():
            with refused(f"{what} was stored, or looked for"):
                await call(store, odd)
        assert await everything(store) == before

    async def test_an_id_may_have_so_many_bytes_and_no_more(self, store: LightningStore) -> None:
        """The limit is that of the smallest key of any store; the characters cannot be compressed."""
        longest = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(MOST_BYTES_OF_AN_ID // 3)) + "ab"
        assert len(longest.encode()) == MOST_BYTES_OF_AN_ID
        await store.enqueue_rollout(1, rollout_id=longest)
        claim = taken(await store.dequeue_rollout(longest))
        assert claim.rollout_id == claim.attempt.worker_id == longest
        span = msgspec.structs.replace(span_of(claim.attempt), span_id=longest, name=longest * 2)
        assert await store.add_span(span) == msgspec.structs.replace(span, sequence_id=1)
        assert await store.add_span(span) is None
        assert (await store.update_resources(longest, {})).resources_id == longest
        before = await everything(store)
        longer = f"{longest}c"
        calls: list[Awaitable[object]] = [
            store.enqueue_rollout(1, rollout_id=longer),
            store.dequeue_rollout(longer),
            store.start_rollout(1, worker_id=longer),
            store.start_attempt(longest, longer),
            store.update_attempt(longest, "latest", worker_id=longer),
            store.update_worker(longer),
            store.update_resources(longer, {}),
            store.add_span(msgspec.structs.replace(span, span_id=longer)),
        ]
        for call in calls:
            with pytest.raises(UsageError, match=f"an id may have at most {MOST_BYTES_OF_AN_ID}"):
                await call
        assert await everything(store) == before
        assert await store.get_rollout_by_id(longer) is None

    async def test_a_nul_within_what_a_user_gives_is_kept(self, store: LightningStore) -> None:
        odd: dict[str, Any] = {NUL: [f"a{NUL}b", {"c": NUL}]}
        resources: NamedResources = {NUL: PromptTemplate(template=f"a{NUL}b")}
        made = await store.start_rollout(odd, metadata=odd)
        assert (made.input, made.metadata) == (odd, odd)
        assert await store.get_rollout_by_id(made.rollout_id) == made
        changed = await store.update_attempt(made.rollout_id, "latest", metadata=odd)
        assert (changed.metadata, (await attempt_now(store, made.attempt)).metadata) == (odd, odd)
        assert (await store.add_resources(resources)).resources == resources
        assert (await store.update_worker("w", odd)).heartbeat_stats == odd
        assert (await store.add_run(Run(run_id="r", name="r", config=odd))).config == odd
        await store.add_metrics("r", [StepMetrics(step=1, values={NUL: 1.0}, notes={NUL: NUL})])
        assert [(found.values, found.notes) for found in await store.query_metrics("r")] == [({NUL: 1.0}, {NUL: NUL})]

    async def test_what_a_span_says_is_kept_whatever_it_is(self, store: LightningStore) -> None:
        """Two surrogates that form a pair become one character; a lone one, and a NUL in a name, becomes U+FFFD."""
        got = await claimed(store)
        odd, smile = f"a{HALF}b{NUL}", "\ud83d" + "\ude00"
        given = msgspec.structs.replace(
            span_of(got.attempt),
            name=f"call {odd}",
            status=SpanStatus(code="error", description=odd),
            attributes={odd: odd, "list": [odd, "plain"], "smile": smile, "ids": b"\xed\xa0\x80", "n": 1},
            events=[SpanEvent(name=odd, time=1.0, attributes={"k": odd})],
            links=[SpanLink(trace_id="1" * 32, span_id="2" * 16, attributes={"k": [odd]})],
            resource={"service.name": odd},
        )
        kept = f"a\ufffdb{NUL}"
        wanted = msgspec.structs.replace(
            given,
            sequence_id=1,
            name="call a\ufffdb\ufffd",
            status=SpanStatus(code="error", description=kept),
            attributes={kept: kept, "list": [kept, "plain"], "smile": "\U0001f600", "ids": b"\xed\xa0\x80", "n": 1},
            events=[SpanEvent(name=kept, time=1.0, attributes={"k": kept})],
            links=[SpanLink(trace_id="1" * 32, span_id="2" * 16, attributes={"k": [kept]})],
            resource={"service.name": kept},
        )
        stored = await store.add_span(given)
        assert stored is not None and stored.attributes.pop(semconv.REDUCED)
        assert stored == wanted
        (read,) = await store.query_spans(got.rollout_id)
        reasons = read.attributes.pop(semconv.REDUCED)
        assert isinstance(reasons, list) and all("U+FFFD" in str(reason) for reason in reasons)
        assert read == wanted
        assert await store.add_span(given) is None

    async def test_odd_text_in_one_callers_span_costs_no_other_anything(self, store: LightningStore) -> None:
        got = await claimed(store)
        texts = ["plain", HALF, "plain", f"{NUL}", f"{HALF} again"]
        spans = [
            msgspec.structs.replace(span_of(got.attempt, f"{n:x}", name=text), attributes={"said": text})
            for n, text in enumerate(texts * 6)
        ]
        stored = await asyncio.gather(*(store.add_span(span) for span in spans[:20]))
        stored += await store.add_many_spans(spans[20:])
        assert all(stored)
        read = {span.span_id: span for span in await store.query_spans(got.rollout_id)}
        assert len(read) == len(spans)
        for span, text in zip(spans, texts * 6, strict=True):
            wanted = text.replace(HALF, "\ufffd")
            assert read[span.span_id].text("said") == wanted
            assert (semconv.REDUCED in read[span.span_id].attributes) == (HALF in text)
            assert read[span.span_id].name == wanted.replace(NUL, "\ufffd")

    async def test_calls_with_odd_text_rest_on_one_another(self, store: LightningStore) -> None:
        got = await claimed(store)
        calls: list[Span] = []
        for turn in range(1, 4):
            messages = "".join(f'{{"role": "user", "content": "turn {n} {HALF}{"x" * 100}"}}' for n in range(turn))
            attributes: Attributes = {
                semconv.PROMPT_IDS: pack_ids(range(100 * turn)),
                semconv.INPUT_MESSAGES: messages,
            }
            calls.append(msgspec.structs.replace(span_of(got.attempt, f"{turn}"), attributes=attributes))
            await store.add_span(calls[-1])
        read = (await store.query_spans(got.rollout_id)).items
        for call, found in zip(calls, read, strict=True):
            said = str(call.attributes[semconv.INPUT_MESSAGES]).replace(HALF, "\ufffd")
            assert found.attributes.pop(semconv.REDUCED)
            assert found.attributes == {**call.attributes, semconv.INPUT_MESSAGES: said}

    @ODD
    async def test_a_span_with_odd_ids_is_refused_by_itself(self, store: LightningStore, odd: str) -> None:
        got = await claimed(store)
        fields = ["trace_id", "span_id", "rollout_id", "attempt_id"]
        wrong = [msgspec.structs.replace(span_of(got.attempt, "b"), **{field: odd}) for field in fields]
        good = [span_of(got.attempt, f"{n:x}") for n in range(4)]
        calls = [store.add_span(span) for span in [*good[:2], *wrong, *good[2:]]]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for field, answer in zip(fields, answers[2:-2], strict=True):
            assert isinstance(answer, UsageError) and field in str(answer)
        assert all(isinstance(answer, Span) for answer in answers[:2] + answers[-2:])
        with refused("a batch was stored"):
            await store.add_many_spans([span_of(got.attempt, "c"), wrong[0]])
        assert len(await store.query_spans(got.rollout_id)) == len(good)
        orphan = await store.add_span(msgspec.structs.replace(span_of(got.attempt, "d"), parent_id=odd))
        assert orphan is not None and orphan.parent_id is None
        assert "is not an id and is left out" in str(orphan.attributes[semconv.REDUCED])
