"""Store contract, named queues: each caller claims and queries the rollouts of the queue that it names."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio

import pytest

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, Rollout, RolloutConfig
from leyden.core.errors import CallRefused, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import RETRY, StoreTests, queue_length, rollout_now, taken
from leyden.core.testing.store_contract.waiting import PROMPT

BAD_NAMES = ("a b", "a/b", "ü", "a:b", "a\n", "*", "a\0", "q" * 801)
LONGEST = "q" * 800


class NamedQueueTests(StoreTests):
    """A store with several queues; `QueueView` is no such store."""

    async def test_a_claim_takes_only_from_its_queue(self, store: LightningStore) -> None:
        requests = [
            EnqueueRollout(input=n, rollout_id=f"r{n}", queue=queue) for n, queue in enumerate(["", "a", "b", "a", ""])
        ]
        queued = await store.enqueue_many_rollouts(requests)
        assert [rollout.queue for rollout in queued] == ["", "a", "b", "a", ""]
        assert await store.dequeue_rollout(queue="c") is None
        assert await store.dequeue_many_rollouts(limit=9, queue="A") == []
        of_a = await store.dequeue_many_rollouts(limit=9, worker_id="w", queue="a")
        assert [(claim.rollout_id, claim.queue) for claim in of_a] == [("r1", "a"), ("r3", "a")]
        assert taken(await store.dequeue_rollout()).rollout_id == "r0"
        assert taken(await store.dequeue_rollout("w", queue="b")).rollout_id == "r2"
        assert await queue_length(store) == 1
        assert [claim.rollout_id for claim in await store.dequeue_many_rollouts(limit=9)] == ["r4"]
        assert await store.dequeue_many_rollouts(limit=9, queue="a") == []
        assert await queue_length(store) == 0

    async def test_the_usual_queue_has_no_name(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout(1)
        started = await store.start_rollout(2)
        assert queued.queue == started.queue == ""
        assert taken(await store.dequeue_rollout(queue="")).rollout_id == queued.rollout_id

    async def test_the_length_counts_all_queues(self, store: LightningStore) -> None:
        for n, queue in enumerate(("", "a", "a", "b")):
            await store.enqueue_rollout(n, queue=queue)
        assert await queue_length(store) == 4
        taken(await store.dequeue_rollout(queue="a"))
        assert await queue_length(store) == 3

    async def test_a_rollout_stays_in_its_queue(self, store: LightningStore) -> None:
        """By a retry, by hand, and after a timeout."""
        first = await store.enqueue_rollout(1, config=RETRY, queue="a")
        taken(await store.dequeue_rollout(queue="a"))
        other = await store.enqueue_rollout(2, queue="a")
        await store.update_attempt(first.rollout_id, "latest", status="failed")
        assert await store.dequeue_rollout() is None
        claims = await store.dequeue_many_rollouts(limit=2, queue="a")
        assert [(claim.rollout_id, claim.attempt.sequence_id) for claim in claims] == [
            (other.rollout_id, 1),
            (first.rollout_id, 2),
        ]
        updated = await store.update_rollout(first.rollout_id, status="requeuing")
        assert updated.queue == "a"
        assert await store.dequeue_rollout() is None
        assert taken(await store.dequeue_rollout(queue="a")).rollout_id == first.rollout_id

    async def test_a_started_rollout_is_retried_in_its_queue(self, store: LightningStore) -> None:
        started = await store.start_rollout(1, config=RETRY, queue="a")
        await store.update_attempt(started.rollout_id, "latest", status="failed")
        assert await store.dequeue_rollout() is None
        retry = taken(await store.dequeue_rollout(queue="a"))
        assert (retry.rollout_id, retry.queue, retry.attempt.sequence_id) == (started.rollout_id, "a", 2)

    async def test_what_left_a_queue_by_hand_is_skipped(self, store: LightningStore) -> None:
        first, second = [await store.enqueue_rollout(n, queue="a") for n in range(2)]
        await store.update_rollout(first.rollout_id, status="cancelled")
        assert await queue_length(store) == 1
        assert [claim.rollout_id for claim in await store.dequeue_many_rollouts(limit=2, queue="a")] == [
            second.rollout_id
        ]

    async def test_a_stored_rollout_keeps_its_queue(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout(1, rollout_id="r", queue="a")
        assert await store.enqueue_rollout(2, rollout_id="r", queue="b") == first
        assert await store.dequeue_rollout(queue="b") is None
        assert taken(await store.dequeue_rollout(queue="a")).rollout_id == "r"

    async def test_queries_stay_inside_their_queue(self, store: LightningStore) -> None:
        for name, queue in (("a1", "a"), ("u1", ""), ("a2", "a"), ("b1", "b"), ("a3", "a")):
            await store.enqueue_rollout(1, rollout_id=name, mode="val" if name == "a3" else "train", queue=queue)
        await store.update_rollout("a2", status="failed")
        await store.update_rollout("b1", status="failed")
        taken(await store.dequeue_rollout(queue="a"))

        async def ids(queue: str | None, **filters: object) -> list[str]:
            page = await store.query_rollouts(queue=queue, **filters)  # pyright: ignore[reportArgumentType] varied by the test
            return [rollout.rollout_id for rollout in page]

        assert await ids(None) == ["a1", "u1", "a2", "b1", "a3"]
        assert await ids("a") == ["a1", "a2", "a3"]
        assert await ids("") == ["u1"]
        assert await ids("c") == await ids("A") == []
        assert await ids("a", filter_logic="or") == ["a1", "a2", "a3"]
        assert await ids("a", status_in=["failed"]) == ["a2"]
        assert await ids("a", status_in=["failed", "preparing"]) == ["a1", "a2"]
        assert await ids("a", status_in=[]) == []
        assert await ids("a", rollout_id_in=["b1", "a3", "a1"]) == ["a1", "a3"]
        assert await ids("a", rollout_id_in=["b1"], status_in=["failed"], filter_logic="or") == ["a2"]
        assert await ids("b", rollout_id_contains="1", status_in=["queuing"], filter_logic="or") == ["b1"]
        assert await ids("a", rollout_id_contains="1") == ["a1"]
        assert await ids("a", sort_by="mode", sort_order="desc") == ["a3", "a1", "a2"]
        pages = [await store.query_rollouts(queue="a", limit=2, offset=offset) for offset in (0, 2, 4)]
        assert [[rollout.rollout_id for rollout in page] for page in pages] == [["a1", "a2"], ["a3"], []]
        assert [page.total for page in pages] == [3, 3, 3]
        assert (await store.query_rollouts(queue="a", limit=0)).total == 3
        page = await store.query_rollouts(queue="a", status_in=["failed", "preparing"], limit=1, offset=1)
        assert ([rollout.rollout_id for rollout in page], page.total) == (["a2"], 2)
        page = await store.query_rollouts(queue="a", status_in=["failed", "preparing"], limit=0)
        assert page.total == 2
        (first, *_) = await store.query_rollouts(queue="a")
        assert isinstance(first, AttemptedRollout) and first == await rollout_now(store, first)

    async def test_a_bad_name_is_refused(self, store: LightningStore) -> None:
        for name in BAD_NAMES:
            with pytest.raises(UsageError, match="queue"):
                await store.enqueue_rollout(1, queue=name)
            with pytest.raises(UsageError, match="queue"):
                await store.enqueue_many_rollouts([EnqueueRollout(input=1), EnqueueRollout(input=1, queue=name)])
            with pytest.raises(UsageError, match="queue"):
                await store.start_rollout(1, queue=name)
            with pytest.raises(UsageError, match="queue"):
                await store.dequeue_rollout(queue=name)
            with pytest.raises(UsageError, match="queue"):
                await store.dequeue_many_rollouts(queue=name, timeout=1)
            with pytest.raises(UsageError, match="queue"):
                await store.query_rollouts(queue=name)
        with pytest.raises(UsageError, match="surrogate"):
            await store.enqueue_rollout(1, queue="a\ud800")
        with pytest.raises(TypeError, match="queue"):
            await store.enqueue_rollout(1, queue=None)  # pyright: ignore[reportArgumentType]
        assert (await store.statistics())["total_rollouts"] == 0

    async def test_a_long_name_and_every_allowed_character(self, store: LightningStore) -> None:
        for name in (LONGEST, "run-1_A.z", "-", "."):
            queued = await store.enqueue_rollout(1, queue=name)
            assert taken(await store.dequeue_rollout(queue=name)).rollout_id == queued.rollout_id
            assert [rollout.queue for rollout in await store.query_rollouts(queue=name)] == [name]

    async def test_a_waiting_claim_gets_work_of_its_queue_only(self, store: LightningStore) -> None:
        waiters = {queue: asyncio.create_task(_waiting(store, queue)) for queue in ("", "a", "b")}
        await asyncio.sleep(0.1)
        of_b = await store.enqueue_rollout(1, queue="b")
        async with asyncio.timeout(PROMPT):
            assert [claim.rollout_id for claim in await waiters["b"]] == [of_b.rollout_id]
        await store.enqueue_rollout(1, queue="c")
        await asyncio.sleep(0.05)
        assert not waiters["a"].done() and not waiters[""].done()
        usual, of_a = await store.enqueue_many_rollouts([EnqueueRollout(input=1), EnqueueRollout(input=1, queue="a")])
        async with asyncio.timeout(PROMPT):
            assert [claim.rollout_id for claim in await waiters["a"]] == [of_a.rollout_id]
            assert [claim.rollout_id for claim in await waiters[""]] == [usual.rollout_id]

    async def test_a_retry_that_falls_due_is_work_of_its_queue(self, store: LightningStore) -> None:
        config = RolloutConfig(timeout_seconds=0.2, max_attempts=2, retry_condition=("timeout",))
        queued = await store.enqueue_rollout(1, config=config, queue="a")
        taken(await store.dequeue_rollout(queue="a"))
        async with asyncio.timeout(0.2 + PROMPT):
            (retry,) = await _waiting(store, "a")
        assert (retry.rollout_id, retry.attempt.sequence_id) == (queued.rollout_id, 2)
        assert await store.dequeue_rollout() is None

    async def test_concurrent_claims_of_several_queues(self, store: LightningStore) -> None:
        queues = ("", "a", "b")
        await store.enqueue_many_rollouts([EnqueueRollout(input=n, queue=queues[n % 3]) for n in range(30)])
        claims = await asyncio.gather(*(store.dequeue_rollout(f"w{n}", queue=queues[n % 3]) for n in range(45)))
        found = [claim for claim in claims if claim is not None]
        for queue in queues:  # a claim may skip what another one takes, and find nothing
            found += await store.dequeue_many_rollouts(limit=30, queue=queue)
        assert len({claim.rollout_id for claim in found}) == len(found) == 30
        assert all(claim.queue == queues[n % 3] for n, claim in enumerate(claims) if claim is not None)

    async def test_a_request_id_belongs_to_one_queue(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout(1, queue="a")
        await store.enqueue_rollout(1, queue="b")
        claim = await store.dequeue_rollout("w", request_id="claim", queue="a")
        assert claim is not None and claim.rollout_id == queued.rollout_id
        assert await store.dequeue_rollout("w", request_id="claim", queue="a") == claim
        for queue in ("", "b"):
            with pytest.raises(CallRefused, match="was used for another request"):
                await store.dequeue_many_rollouts(worker_id="w", request_id="claim", queue=queue)
        started = await store.start_rollout(1, request_id="start", queue="a")
        assert await store.start_rollout(1, request_id="start", queue="a") == started
        with pytest.raises(CallRefused, match="was used for another request"):
            await store.start_rollout(1, request_id="start", queue="b")

    async def test_every_answer_names_the_queue(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout(1, queue="a")
        claim = taken(await store.dequeue_rollout(queue="a"))
        found: list[Rollout | None] = [queued, claim, await store.get_rollout_by_id(queued.rollout_id)]
        found += await store.query_rollouts(rollout_id_in=[queued.rollout_id])
        found.append(await store.start_attempt(queued.rollout_id))
        found.append(await store.update_rollout(queued.rollout_id, metadata={"a": 1}))
        latest = await store.find_attempt(queued.rollout_id, claim.attempt.attempt_id)
        found.append(None if latest is None else latest[0])
        found.append(await store.update_rollout(queued.rollout_id, status="succeeded"))
        found += await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=0)
        assert [None if rollout is None else rollout.queue for rollout in found] == ["a"] * 9


async def _waiting(store: LightningStore, queue: str) -> list[AttemptedRollout]:
    return await store.dequeue_many_rollouts(timeout=20, queue=queue)
