"""Store contract, request ids: a request with an id is executed once, and a repeated one returns the first result."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio

import pytest

from leyden.core.data.resources import NamedResources, PromptTemplate
from leyden.core.errors import CallRefused, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import StoreTests, queue_length

PROMPT: NamedResources = {"prompt": PromptTemplate(template="Say {word}")}


class RequestTests(StoreTests):
    """Requests with ids."""

    async def test_a_claim_that_is_made_again_is_granted_again(self, store: LightningStore) -> None:
        for n in range(3):
            await store.enqueue_rollout(n)
        claimed = await store.dequeue_many_rollouts(limit=2, worker_id="w", request_id="first")
        assert await store.dequeue_many_rollouts(limit=2, worker_id="w", request_id="first") == claimed
        assert await queue_length(store) == 1
        alone = await store.dequeue_rollout("w", request_id="second")
        assert alone is not None and alone.input == 2
        assert await store.dequeue_rollout("w", request_id="second") == alone
        assert (await store.statistics())["total_attempts"] == 3

    async def test_a_claim_that_found_nothing_is_made_anew(self, store: LightningStore) -> None:
        assert await store.dequeue_many_rollouts(request_id="early") == []
        queued = await store.enqueue_rollout(1)
        (claim,) = await store.dequeue_many_rollouts(request_id="early")
        assert claim.rollout_id == queued.rollout_id

    async def test_a_claim_of_what_is_over_or_was_given_to_another_is_not_granted_again(
        self, store: LightningStore
    ) -> None:
        for n in range(3):
            await store.enqueue_rollout(n)
        ended, taken, left = await store.dequeue_many_rollouts(limit=3, request_id="r")
        await store.update_attempt(ended.rollout_id, "latest", status="failed")
        await store.start_attempt(taken.rollout_id)
        assert await store.dequeue_many_rollouts(limit=3, request_id="r") == [left]

    async def test_what_is_begun_is_begun_once(self, store: LightningStore) -> None:
        made = await store.start_rollout({"question": 1}, worker_id="w", request_id="start")
        assert await store.start_rollout({"question": 1}, worker_id="w", request_id="start") == made
        again = await store.start_attempt(made.rollout_id, request_id="again")
        assert await store.start_attempt(made.rollout_id, request_id="again") == again
        assert again.attempt.sequence_id == 2
        assert (await store.statistics())["total_attempts"] == 2
        with pytest.raises(CallRefused, match="is no longer the latest"):
            await store.start_rollout({"question": 1}, worker_id="w", request_id="start")

    async def test_a_version_of_resources_is_stored_once(self, store: LightningStore) -> None:
        added = await store.add_resources(PROMPT, request_id="add")
        assert await store.add_resources(PROMPT, request_id="add") == added
        second = await store.update_resources(added.resources_id, {}, request_id="update")
        assert await store.update_resources(added.resources_id, {}, request_id="update") == second
        assert (added.version, second.version, len(await store.query_resources())) == (1, 2, 1)

    async def test_requests_of_several_callers_at_once_do_not_mix(self, store: LightningStore) -> None:
        for n in range(8):
            await store.enqueue_rollout(n)
        names = [f"request {n}" for n in range(8)]
        first = await asyncio.gather(*(store.dequeue_rollout(request_id=name) for name in names))
        missed = [name for name, claim in zip(names, first, strict=True) if claim is None]
        first += [await store.dequeue_rollout(request_id=name) for name in missed]
        claimed = {name: claim for name, claim in zip([*names, *missed], first, strict=True) if claim is not None}
        assert len({claim.rollout_id for claim in claimed.values()}) == 8
        for name, claim in claimed.items():
            assert await store.dequeue_rollout(request_id=name) == claim
        with pytest.raises(UsageError):
            await store.dequeue_rollout(request_id="a\ud800")
