"""Store contract, queries: filters, sorting, pages, and missing objects."""

# ruff: noqa: D102 (a test's name is its documentation)

import msgspec
import pytest

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutMode
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import MISSING, StoreTests, claimed, span_of, taken


class QueryTests(StoreTests):
    """Queries and their results."""

    async def test_what_is_not_there_reads_as_nothing(self, store: LightningStore) -> None:
        assert await store.get_rollout_by_id(MISSING) is None
        assert await store.get_latest_attempt(MISSING) is None
        assert await store.get_resources_by_id(MISSING) is None
        assert await store.get_latest_resources() is None
        assert await store.get_worker_by_id(MISSING) is None
        for page in (await store.query_attempts(MISSING), await store.query_spans(MISSING, "latest")):
            assert (list(page), page.total) == ([], 0)
        for page in (await store.query_rollouts(), await store.query_resources(), await store.query_workers()):
            assert (list(page), page.total) == ([], 0)
        queued = await store.enqueue_rollout(1)
        assert list(await store.query_spans(queued.rollout_id, "latest")) == []
        assert await store.get_latest_attempt(queued.rollout_id) is None

    async def test_pages(self, store: LightningStore) -> None:
        ids = [(await store.enqueue_rollout(n, rollout_id=f"r{n}")).rollout_id for n in range(5)]
        for limit, offset, expected in (
            (-1, 0, ids),
            (0, 0, []),
            (2, 0, ids[:2]),
            (2, 4, ids[4:]),
            (-1, 3, ids[3:]),
            (3, 9, []),
        ):
            page = await store.query_rollouts(limit=limit, offset=offset)
            assert [rollout.rollout_id for rollout in page] == expected
            assert (page.limit, page.offset, page.total, len(page)) == (limit, offset, 5, len(expected))
        with pytest.raises(ValueError, match="offset"):
            await store.query_rollouts(offset=-1)

    async def test_rollout_filters(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRollout(input=1, rollout_id=name) for name in ("a1", "a2", "b1")])
        await store.update_rollout("a2", status="failed")

        async def ids(**filters: object) -> list[str]:
            page = await store.query_rollouts(**filters)  # pyright: ignore[reportArgumentType] varied by the test
            return [rollout.rollout_id for rollout in page]

        assert await ids(status_in=["failed"]) == ["a2"]
        assert await ids(status_in=[]) == await ids(rollout_id_in=[]) == await ids(status=[]) == []
        assert await ids(rollout_id_in=["b1", "a1", MISSING]) == ["a1", "b1"]
        assert await ids(rollout_id_contains="a", status_in=["queuing"]) == ["a1"]
        assert await ids(rollout_id_contains="b", status_in=["failed"], filter_logic="or") == ["a2", "b1"]
        assert await ids(filter_logic="or") == ["a1", "a2", "b1"]
        assert await ids(status=["failed"], rollout_ids=["a1", "a2"]) == ["a2"]
        assert await ids(status_in=["queuing"], status=["failed"], rollout_id_in=["a1"], rollout_ids=["a2"]) == ["a1"]
        assert await ids(rollout_id_contains="A") == []
        assert await ids(rollout_id_contains="%") == []

    async def test_sorting_puts_nones_last_ascending_and_first_descending(self, store: LightningStore) -> None:
        modes: dict[str, RolloutMode | None] = {"r1": "val", "r2": None, "r3": "train", "r4": "val"}
        for name, mode in modes.items():
            await store.enqueue_rollout(1, mode=mode, rollout_id=name)

        async def ids(**sorting: object) -> list[str]:
            page = await store.query_rollouts(**sorting)  # pyright: ignore[reportArgumentType] varied by the test
            return [rollout.rollout_id for rollout in page]

        assert await ids(sort_by="mode") == ["r3", "r1", "r4", "r2"]
        assert await ids(sort_by="mode", sort_order="desc") == ["r2", "r1", "r4", "r3"]
        assert await ids(sort_by="rollout_id", sort_order="desc", limit=2, offset=1) == ["r3", "r2"]
        assert await ids(sort_by="end_time", sort_order="desc", limit=1) == ["r1"]

    async def test_an_unknown_sort_field_is_a_value_error(self, store: LightningStore) -> None:
        for sort_by in ("nothing", "input", "config", "span_counter"):
            with pytest.raises(ValueError, match="cannot sort by"):
                await store.query_rollouts(sort_by=sort_by)
        with pytest.raises(ValueError, match="cannot sort by"):
            await store.query_attempts(MISSING, sort_by="nothing")
        with pytest.raises(ValueError, match="cannot sort by"):
            await store.query_spans(MISSING, sort_by="body")
        with pytest.raises(ValueError, match="cannot sort by"):
            await store.query_resources(sort_by="nothing")
        with pytest.raises(ValueError, match="cannot sort by"):
            await store.query_workers(sort_by="nothing")

    async def test_rollouts_come_with_their_latest_attempt_or_without_one(self, store: LightningStore) -> None:
        first = await claimed(store)
        second = await store.start_attempt(first.rollout_id)
        queued = await store.enqueue_rollout(2)
        with_attempt, without = await store.query_rollouts()
        assert isinstance(with_attempt, AttemptedRollout) and with_attempt.attempt == second.attempt
        assert not hasattr(without, "attempt")
        assert await store.get_rollout_by_id(first.rollout_id) == with_attempt
        assert await store.get_rollout_by_id(queued.rollout_id) == without
        assert await store.get_latest_attempt(first.rollout_id) == second.attempt

    async def test_attempts_are_paged_and_sorted(self, store: LightningStore) -> None:
        got = await claimed(store)
        for _ in range(3):
            await store.start_attempt(got.rollout_id)
        await claimed(store)
        page = await store.query_attempts(got.rollout_id, limit=2, offset=1)
        assert [attempt.sequence_id for attempt in page] == [2, 3]
        assert page.total == 4
        page = await store.query_attempts(got.rollout_id, sort_order="desc", limit=1)
        assert [attempt.sequence_id for attempt in page] == [4]

    async def test_span_filters_stay_inside_their_rollout_and_attempt(self, store: LightningStore) -> None:
        first, other = await claimed(store), await claimed(store)
        second = await store.start_attempt(first.rollout_id)
        for got, names in ((first, "ab"), (second, "bc"), (other, "ab")):
            await store.add_many_spans([_named(span_of(got.attempt, name, name=f"span {name}")) for name in names])
        rollout_id = first.rollout_id

        async def found(attempt_id: str | None = None, **filters: object) -> list[tuple[int, str]]:
            page = await store.query_spans(rollout_id, attempt_id, **filters)  # pyright: ignore[reportArgumentType] varied by the test
            return [(span.sequence_id, span.name[-1]) for span in page]

        assert await found() == [(1, "a"), (2, "b"), (3, "b"), (4, "c")]
        assert await found(first.attempt.attempt_id) == [(1, "a"), (2, "b")]
        assert await found("latest") == [(3, "b"), (4, "c")]
        assert await found(name="span b") == [(2, "b"), (3, "b")]
        assert await found(name_contains="pan", span_id_contains="0c") == [(4, "c")]
        assert await found("latest", name="span a", span_id_contains="c", filter_logic="or") == [(4, "c")]
        assert await found(trace_id="b" * 32, parent_id="a" * 16) == []
        assert await found(trace_id_contains="cc", parent_id_contains="bb", filter_logic="or") == [
            (2, "b"),
            (3, "b"),
            (4, "c"),
        ]
        assert await found(parent_id_contains="") == await found()
        assert await found(span_id="a".zfill(16)) == [(1, "a")]
        assert await found(sort_by="name", sort_order="desc", limit=2, offset=1) == [(2, "b"), (3, "b")]
        assert await found(sort_by="start_time") == await found(sort_by=None) == await found()
        assert await found("no such attempt") == []

    async def test_latest_is_the_latest_attempt_even_without_spans(self, store: LightningStore) -> None:
        got = await claimed(store)
        await store.add_span(span_of(got.attempt))
        await store.update_rollout(got.rollout_id, status="requeuing")
        taken(await store.dequeue_rollout())
        assert list(await store.query_spans(got.rollout_id, "latest")) == []

    async def test_a_span_without_a_parent_passes_no_parent_filter(self, store: LightningStore) -> None:
        got = await claimed(store)
        await store.add_span(span_of(got.attempt))
        assert len(await store.query_spans(got.rollout_id, parent_id_contains="")) == 0

    async def test_statistics_count(self, store: LightningStore) -> None:
        got = await claimed(store)
        await store.start_attempt(got.rollout_id, worker_id="w")
        await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(3)])
        await store.add_many_spans([span_of(got.attempt, f"{n}") for n in range(4)])
        await store.update_resources("r", {})
        await store.update_resources("r", {})
        expected = {
            "total_rollouts": 4,
            "total_attempts": 2,
            "total_spans": 4,
            "total_resources": 1,
            "total_workers": 1,
            "queue_length": 3,
        }
        assert (await store.statistics()).items() >= expected.items()


def _named(span: Span) -> Span:
    letter = span.name[-1]
    return msgspec.structs.replace(span, trace_id=letter * 32, parent_id=letter * 16)
