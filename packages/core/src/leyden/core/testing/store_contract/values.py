"""Store contract, values: spans, tasks and notes with values of any kind are kept, in part if necessary."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
import datetime
import decimal
import enum
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids
from leyden.core.data.plain import reading
from leyden.core.data.plain.own_methods import TimeBudget
from leyden.core.data.resources import LLM, PromptTemplate
from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.data.run import Run, StepMetrics
from leyden.core.data.span import MOST_BYTES, Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.errors import REFUSALS, CallRefused, LeydenError, NotFound, WrongType
from leyden.core.store.base import LightningStore
from leyden.core.testing.any_values import RELEASE, AnySpan, AnyValue, any_spans, any_values
from leyden.core.testing.any_values.checks import check_documents, check_span
from leyden.core.testing.any_values.hostile import SPOILED, OfHostileClass, ReprBlocks, ReprRaises
from leyden.core.testing.store_contract.shared import MISSING, StoreTests, attempt_now, claimed, span_of

NAN: Any = math.nan
ANY: Any = None
NOPE: Any = "nope"
FIVE: Any = 5
LISTED: Any = ["failed"]
CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
PATIENCE = 100.0
"""Seconds that a blocking value may take where a test decides when it goes on."""
Wrong = Callable[[LightningStore, Any], Awaitable[object]]


def blocking() -> object:
    """Return a value whose `repr` blocks, of a new class: a class whose method did not return is not called again."""

    class Blocks(ReprBlocks):
        pass

    return Blocks()


class _Text(str):
    """Text of a subclass, as LangChain returns it."""


class _Colour(enum.Enum):
    RED = "red"


class _Bare:
    """An object without a `repr` of its own."""


def _cycle() -> Any:
    held: list[Any] = [1]
    held.append(held)
    return held


KEPT: dict[str, tuple[Any, Any]] = {
    "text of a subclass": (_Text("answer"), "answer"),
    "text that raises": (SPOILED[str]("answer"), "answer"),
    "number that raises": (SPOILED[float](0.5), 0.5),
    "member": (_Colour.RED, "red"),
    "Decimal": (decimal.Decimal("1.50"), "1.50"),
    "date": (datetime.date(2024, 1, 2), "2024-01-02"),
    "dict": ({"a": [1, {"b": None}]}, '{"a": [1, {"b": null}]}'),
    "list of dicts": ([{"a": 1}, "x", 2], ['{"a": 1}', "x", 2]),
    "tuple of bytes": ((b"\xff", 1), ["/w==", 1]),
    "list that raises": (SPOILED[list]([1, "a"]), [1, "a"]),
    "dict that raises": (SPOILED[dict](a=1), '{"a": 1}'),
}
"""By name: an attribute's value, and its stored form, which is complete."""
REDUCED: dict[str, tuple[Any, Any, str]] = {
    "half a pair": ("a\ud800b", "a\ufffdb", "surrogate"),
    "2^64": (1 << 64, str(1 << 64), "65 bits is kept as text"),
    "list with nothing": ([1, None, 2], [1, 2], "1 of 3 items are None"),
    "list in itself": (_cycle(), [1, '["\\u2026"]'], "it contains itself"),
    "object": (_Bare(), f"<{__name__}._Bare>", "which has neither __repr__ nor __str__"),
    "object that raises": (ReprRaises(), f"<{ReprRaises.__module__}.ReprRaises>", "whose own text raised Broken"),
    "object of a hostile class": (
        OfHostileClass(),
        f"<{OfHostileClass.__module__}.OfHostileClass>",
        "neither __repr__",
    ),
    "NaN in a dict": ({"a": math.nan}, '{"a": "nan"}', "nan is kept as text"),
    "key that is a number": ({1: "one"}, '{"1": "one"}', ""),
}
"""By name: an attribute's value, its stored form, and the reason why that is incomplete."""
TYPES: dict[str, Wrong] = {
    "rollout": lambda store, odd: store.get_rollout_by_id(odd),
    "attempt": lambda store, odd: store.update_attempt("r", odd, status="running"),
    "worker": lambda store, odd: store.dequeue_rollout(odd),
    "worker's statistics": lambda store, odd: store.update_worker("w", odd),
    "limit": lambda store, odd: store.query_spans("r", limit=odd),
    "statuses": lambda store, odd: store.query_rollouts(status_in=odd),
    "status": lambda store, odd: store.update_rollout("r", status=odd),
    "order": lambda store, odd: store.query_attempts("r", sort_order=odd),
    "mode": lambda store, odd: store.start_rollout(1, mode=odd),
    "config": lambda store, odd: store.enqueue_rollout(1, config=odd),
    "metadata": lambda store, odd: store.enqueue_rollout(1, metadata=odd),
    "requests": lambda store, odd: store.enqueue_many_rollouts(odd),
    "ids": lambda store, odd: store.wait_for_rollouts(rollout_ids=odd, timeout=0.0),
    "timeout": lambda store, odd: store.wait_for_rollouts(rollout_ids=[], timeout=odd),
    "heartbeat": lambda store, odd: store.update_attempt("r", "latest", last_heartbeat_time=odd),
    "resources": lambda store, odd: store.add_resources(odd),
    "resource": lambda store, odd: store.add_resources({"a": odd}),
    "model": lambda store, odd: store.add_resources({"a": LLM(endpoint="e", model=odd)}),
    "run": lambda store, odd: store.add_run(odd),
    "config of a run": lambda store, odd: store.add_run(Run(run_id="r", name="r", config=odd)),
    "measurements": lambda store, odd: store.add_metrics("r", odd),
    "pairs": lambda store, odd: store.get_many_span_sequence_ids(odd),
    "spans": lambda store, odd: store.add_many_spans(odd),
    "span": lambda store, odd: store.add_span(odd),
}
"""Calls with a value of the wrong type in one argument."""


async def _kept(store: LightningStore, values: dict[str, Any]) -> Span:
    got = await claimed(store)
    stored = await store.add_span(msgspec.structs.replace(span_of(got.attempt), attributes=values))
    (read,) = await store.query_spans(got.rollout_id)
    assert stored == read
    return read


class ValueTests(StoreTests):
    """Values of every kind."""

    async def test_what_can_be_kept_whole_is(self, store: LightningStore) -> None:
        read = await _kept(store, {name: given for name, (given, _) in KEPT.items()})
        assert read.attributes == {name: kept for name, (_, kept) in KEPT.items()}
        assert all(type(value) in (str, float, int, list) for value in read.attributes.values())

    async def test_what_cannot_be_kept_whole_is_kept_in_part_and_marked(self, store: LightningStore) -> None:
        read = await _kept(store, {**{name: given for name, (given, _, _) in REDUCED.items()}, "lazy": iter([1])})
        reasons = read.attributes.pop(semconv.REDUCED)
        assert isinstance(reasons, list)
        for name, (_, kept, why) in REDUCED.items():
            assert read.attributes[name] == kept, name
            places = (f"attributes.{name}:", f"attributes.{name}.", f"attributes.{name}[")
            marks = [reason for reason in reasons if str(reason).startswith(places)]
            assert bool(marks) == bool(why) and all(why in str(mark) for mark in marks), (name, marks)
        assert any("attributes.lazy: an object of type list_iterator" in str(reason) for reason in reasons)

    async def test_a_span_whose_fields_are_none_of_what_belongs_there_is_kept(self, store: LightningStore) -> None:
        got = await claimed(store)
        fields: list[dict[str, Any]] = [
            {"name": None},
            {"name": 7},
            {"attributes": None, "events": None, "links": None, "resource": None},
            {"attributes": [1, 2]},
            {"attributes": {None: 1, 2: "two", "none": None}},
            {"events": [None, SpanEvent(name=ANY, time=NAN, attributes=ANY)], "links": [None]},
            {"links": [SpanLink(trace_id=ANY, span_id=ANY)], "parent_id": 5},
            {"start_time": None},
            {"start_time": math.nan, "end_time": math.inf},
            {"start_time": "soon", "end_time": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)},
            {"status": SpanStatus(code="error", description=FIVE)},
        ]
        spans = [
            msgspec.structs.replace(span_of(got.attempt, f"{n:x}"), **odd) for n, odd in enumerate(fields, start=1)
        ]
        alone = await asyncio.gather(*(store.add_span(span) for span in spans))
        assert all(alone)
        read = {span.span_id: span for span in await store.query_spans(got.rollout_id)}
        assert len(read) == len(fields)
        whole = {"attributes": None, "events": None, "links": None, "resource": None}
        for span, odd in zip(spans, fields, strict=True):
            assert (semconv.REDUCED in read[span.span_id].attributes) == (odd != whole), odd
            msgspec.json.encode(read[span.span_id])

    async def test_an_unreadable_span_of_opentelemetry_is_kept(self, store: LightningStore) -> None:
        got = await claimed(store)
        context = SpanContext(1, 2, is_remote=False)
        event = Event(ANY, timestamp=5)
        odd = ReadableSpan(ANY, context, resource=Resource({}), attributes={"a": SPOILED[int](3)}, events=[event, ANY])
        kept = await store.add_otel_span(got.rollout_id, got.attempt.attempt_id, odd)
        assert kept is not None and (kept.name, kept.attributes["a"], len(kept.events)) == ("None", 3, 1)
        broken = ReadableSpan("b", SpanContext(1, 3, is_remote=False), resource=ANY, events=ANY, status=ANY)
        kept = await store.add_otel_span(got.rollout_id, got.attempt.attempt_id, broken)
        assert kept is not None and semconv.REDUCED in kept.attributes
        assert (await store.query_spans(got.rollout_id)).total == 2
        with pytest.raises(REFUSALS, match="no span context"):
            await store.add_otel_span(got.rollout_id, got.attempt.attempt_id, ReadableSpan("c", None))

    @pytest.mark.parametrize("field", ["trace_id", "span_id", "rollout_id", "attempt_id", "sequence_id", "status"])
    async def test_a_span_without_an_identity_is_refused_and_no_other(self, store: LightningStore, field: str) -> None:
        got = await claimed(store)
        odd: dict[str, Any] = {field: SpanStatus(code=ANY) if field == "status" else ReprRaises()}
        wrong = msgspec.structs.replace(span_of(got.attempt, "b"), **odd)
        calls = [store.add_span(span) for span in (span_of(got.attempt, "a"), wrong, span_of(got.attempt, "c"))]
        first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, Span) and isinstance(last, Span)
        assert isinstance(refused, REFUSALS) and "\n" not in str(refused)
        assert (await store.query_spans(got.rollout_id)).total == 2

    async def test_an_enormous_span_is_shortened_where_it_is_largest(self, store: LightningStore) -> None:
        got = await claimed(store)
        large, tokens = "x" * (MOST_BYTES + 1), pack_ids(range(1000))
        attributes: dict[str, Any] = {"large": large, "small": "é" * 100, semconv.PROMPT_IDS: tokens}
        stored = await store.add_span(msgspec.structs.replace(span_of(got.attempt), attributes=attributes))
        assert stored is not None and stored.bytes() <= MOST_BYTES
        assert (stored.attributes["small"], stored.attributes[semconv.PROMPT_IDS]) == ("é" * 100, tokens)
        assert large.startswith(str(stored.attributes["large"])[:-1])
        (reason,) = msgspec.convert(stored.attributes[semconv.REDUCED], list[str])
        assert reason == f"attributes.large: the beginning of {MOST_BYTES + 1} bytes is kept"
        ids = {**attributes, semconv.PROMPT_IDS: b"\0" * (MOST_BYTES + 1)}
        with pytest.raises(CallRefused, match="bytes; a span may have"):
            await store.add_span(msgspec.structs.replace(span_of(got.attempt, "b"), attributes=ids))

    async def test_a_value_that_blocks_holds_up_no_other_call(
        self, store: LightningStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def patient(seconds: float) -> TimeBudget:
            return TimeBudget(PATIENCE if seconds else 0.0)

        monkeypatch.setattr(reading, "TimeBudget", patient)  # on a busy machine, the other call may take seconds
        got = await claimed(store)
        RELEASE.clear()
        try:
            odd: Any = {"odd": blocking()}
            blocked = msgspec.structs.replace(span_of(got.attempt, "b"), attributes=odd)
            slow = asyncio.create_task(store.add_span(blocked))
            await asyncio.sleep(0)
            assert await store.add_span(span_of(got.attempt, "a")) is not None
            assert not slow.done()
        finally:
            RELEASE.set()
        kept = await slow
        assert kept is not None and kept.attributes["odd"] == "released"

    async def test_a_value_that_blocks_for_too_long_is_kept_as_its_type(self, store: LightningStore) -> None:
        got = await claimed(store)
        RELEASE.clear()
        try:
            odd: Any = {"odd": blocking()}
            kept = await store.add_span(msgspec.structs.replace(span_of(got.attempt), attributes=odd))
        finally:
            RELEASE.set()
        assert kept is not None and str(kept.attributes["odd"]).endswith(".Blocks>")

    async def test_any_span_is_kept(self, store: LightningStore) -> None:
        got, number = await claimed(store), iter(range(1 << 20))
        RELEASE.set()

        async def check(recipe: AnySpan) -> None:
            await check_span(store, got.attempt, recipe, f"{next(number) + 1:016x}")

        await _for_all(any_spans(), check)

    async def test_any_task_and_note_is_kept(self, store: LightningStore) -> None:
        RELEASE.set()
        number = iter(range(1 << 20))

        async def check(recipe: AnyValue) -> None:
            await check_documents(store, recipe, f"w-{next(number)}-")

        await _for_all(any_values(), check)

    async def test_a_task_is_kept_with_what_is_not_whole_in_its_metadata(self, store: LightningStore) -> None:
        task = {"question": _Text("2 + 3?"), "picture": _Bare(), "score": SPOILED[float](0.5)}
        kept = {"question": "2 + 3?", "picture": f"<{__name__}._Bare>", "score": 0.5}
        queued = await store.enqueue_rollout(task, metadata={"mine": 1})
        assert (queued.input, queued.metadata["mine"]) == (kept, 1)
        (reason,) = queued.metadata[semconv.REDUCED]
        assert reason == f"input.picture: an object of type {__name__}._Bare, which has neither __repr__ nor __str__"
        many = await store.enqueue_many_rollouts([EnqueueRollout(input=task), EnqueueRollout(input={"a": _Text("b")})])
        assert [one.metadata for one in many] == [{semconv.REDUCED: [reason]}, {}]
        started = await store.start_rollout(task)
        assert started.metadata == {semconv.REDUCED: [reason]}
        with pytest.raises(CallRefused, match=r"input\.picture"):
            await store.update_rollout(started.rollout_id, input=task)
        assert (await store.update_rollout(started.rollout_id, input=task, metadata={})).metadata == started.metadata

    async def test_what_agents_work_with_is_kept_whole_or_refused(self, store: LightningStore) -> None:
        llm = LLM(endpoint=_Text("http://e/v1"), model=_Text("m"), sampling_parameters={"top_p": SPOILED[float](0.5)})
        kept = LLM(endpoint="http://e/v1", model="m", sampling_parameters={"top_p": 0.5})
        assert (await store.add_resources({_Text("main"): llm})).resources == {"main": kept}
        before = await store.query_resources()
        for odd in (LLM(endpoint="e", model="m", sampling_parameters={"stop": _Bare()}), PromptTemplate(template=ANY)):
            with pytest.raises(CallRefused):
                await store.add_resources({"main": odd})
        assert await store.query_resources() == before
        assert (await store.enqueue_rollout(1)).resources_version == 1

    @pytest.mark.parametrize("what", TYPES)
    async def test_what_is_of_another_type_is_refused_with_one_line(self, store: LightningStore, what: str) -> None:
        for odd in (b"x", SPOILED[bytes](b"x"), _Bare(), ReprRaises(), OfHostileClass()):
            with pytest.raises(LeydenError) as refused:
                await TYPES[what](store, odd)
            assert isinstance(refused.value, (*REFUSALS, NotFound)) and "\n" not in str(refused.value)

    async def test_a_config_that_cannot_be_is_refused_before_anything_is_queued(self, store: LightningStore) -> None:
        odd: list[Any] = [{"max_attempts": 3.0}, {"max_attempts": "2"}, {"timeout_seconds": math.nan}]
        odd += [{"timeout_seconds": math.inf}, {"unresponsive_seconds": "1"}, {"retry_condition": ("nope",)}]
        odd += [{"retry_condition": 5}, {"max_attempts": 1 << 70}]
        for fields in odd:
            with pytest.raises(CallRefused, match="config"):
                await store.enqueue_rollout(1, config=RolloutConfig(**fields))
        assert (await store.statistics())["total_rollouts"] == 0
        fine = RolloutConfig(max_attempts=SPOILED[int](3), timeout_seconds=FIVE, retry_condition=LISTED)
        await store.enqueue_rollout(1, config=fine)
        claim = await store.dequeue_rollout()
        wanted = RolloutConfig(max_attempts=3, timeout_seconds=5.0, retry_condition=("failed",))
        assert claim is not None and claim.config == wanted

    async def test_a_time_that_is_no_number_is_refused(self, store: LightningStore) -> None:
        got = await claimed(store, RolloutConfig(unresponsive_seconds=0.05))
        for time in (math.nan, math.inf, -math.inf, 10**400):
            with pytest.raises(CallRefused, match="last_heartbeat_time"):
                await store.update_attempt(got.rollout_id, "latest", last_heartbeat_time=time)
        for call in (
            store.wait_for_rollouts(rollout_ids=[got.rollout_id], timeout=math.nan),
            store.dequeue_many_rollouts(timeout=math.nan),
        ):
            with pytest.raises(CallRefused, match="timeout is nan"):
                await asyncio.wait_for(call, 10)
        await asyncio.sleep(0.06)
        assert (await attempt_now(store, got.attempt)).status == "unresponsive"

    async def test_a_status_that_is_none_is_refused_and_what_is_missing_is_named(self, store: LightningStore) -> None:
        got = await claimed(store)
        with pytest.raises(CallRefused, match=r"status_in\[1\] is 'nope'; it must be one of queuing"):
            await store.query_rollouts(status_in=["queuing", NOPE])
        with pytest.raises(CallRefused, match="it must be one of idle"):
            await store.query_workers(status_in=[NOPE])
        span = span_of(got.attempt)
        with pytest.raises(NotFound, match=f"there is no rollout {MISSING}"):
            await store.add_span(msgspec.structs.replace(span, rollout_id=MISSING))
        with pytest.raises(NotFound, match=f"rollout {got.rollout_id} has no attempt other"):
            await store.add_span(msgspec.structs.replace(span, attempt_id="other"))

    async def test_notes_and_measurements_of_any_kind_are_kept(self, store: LightningStore) -> None:
        await store.add_run(Run(run_id="r", name=_Text("r"), config={"rate": SPOILED[float](0.5), "model": _Bare()}))
        run = await store.get_run_by_id("r")
        assert run is not None and (run.name, run.config["rate"]) == ("r", 0.5)
        assert run.config[semconv.REDUCED] == [
            f"config.model: an object of type {__name__}._Bare, which has neither __repr__ nor __str__"
        ]
        values: Any = {_Text("loss"): SPOILED[float](0.25), "steps": SPOILED[int](3)}
        await store.add_metrics(
            "r", [StepMetrics(step=SPOILED[int](1), values=values, notes={"alert": _Text("it falls")})]
        )
        (found,) = await store.query_metrics("r")
        assert (found.step, found.values, found.notes) == (1, {"loss": 0.25, "steps": 3.0}, {"alert": "it falls"})

    async def test_a_page_is_a_sequence(self, store: LightningStore) -> None:
        for name in ("a", "b", "c"):
            await store.enqueue_rollout(1, rollout_id=name)
        page = await store.query_rollouts()
        sequence: Any = page
        assert isinstance(sequence, Sequence)
        assert ([page[0].rollout_id, page[-1].rollout_id], len(page[1:])) == (["a", "c"], 2)
        assert page[1] in page and page.index(page[2]) == 2 and page.count(page[0]) == 1
        assert [one.rollout_id for one in reversed(page)] == ["c", "b", "a"]

    async def test_a_store_says_what_it_is_and_since_when(self, store: LightningStore) -> None:
        found = await store.statistics()
        assert found["name"] in ("memory", "sqlite", "postgresql", "redis", "shard")
        assert 0 <= found["uptime"] <= (await store.statistics())["uptime"]

    async def test_a_type_that_is_wrong_is_a_type_error_too(self, store: LightningStore) -> None:
        with pytest.raises(TypeError, match="limit is 'nope', a str; it must be a whole number") as refused:
            await store.query_rollouts(limit=NOPE)
        assert isinstance(refused.value, WrongType)


async def _for_all(recipes: Any, check: Callable[[Any], Awaitable[None]]) -> None:
    """Check recipes on this event loop; another thread draws them."""
    loop = asyncio.get_running_loop()

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=CHECKS)
    @given(recipes)
    def check_one(recipe: Any) -> None:
        async def work() -> None:
            await check(recipe)

        asyncio.run_coroutine_threadsafe(work(), loop).result()

    await asyncio.to_thread(check_one)
