"""The original's walk through a store, over its names: enqueue, claim, add spans, query."""

import time

import pytest

import leyden.core.agent_lightning as agl
from leyden.core.agent_lightning.replaced import ReplacedName
from leyden.core.data import semconv
from leyden.core.errors import StoreError, UsageError
from leyden.core.testing import factories


async def walk(store: agl.LightningStore) -> None:
    prompts: agl.NamedResources = {"prompt": agl.PromptTemplate(template="Say {word}", engine="f-string")}
    update = await store.add_resources(prompts)
    config = agl.RolloutConfig(max_attempts=2, retry_condition=("failed",))
    queued = await store.enqueue_rollout(input={"word": "hi"}, mode="train", config=config)
    assert (queued.status, queued.resources_id) == ("queuing", update.resources_id)

    claimed = await store.dequeue_rollout(worker_id="w1")
    assert isinstance(claimed, agl.AttemptedRollout)
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    now = time.time()
    value: agl.Attributes = {semconv.REWARD_VALUE: 0.5}
    reward = factories.span(semconv.REWARD, value, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=0)
    await store.add_span(
        agl.Span(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=await store.get_next_span_sequence_id(rollout_id, attempt_id),
            trace_id="ab" * 16,
            span_id="cd" * 8,
            parent_id=None,
            name="search",
            attributes={"query": "hi"},
            start_time=now,
            end_time=now,
        )
    )
    await store.add_many_spans([reward])
    await store.update_attempt(rollout_id, "latest", status="succeeded")

    (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=5.0)
    assert ended.status == "succeeded"
    spans = await store.query_spans(rollout_id, "latest")
    assert isinstance(spans, agl.PaginatedResult)
    assert (len(spans), spans[0].name, [span.name for span in spans[1:]]) == (2, "search", [reward.name])
    assert agl.find_final_reward(spans) == 0.5
    found = await store.query_rollouts(status_in=["succeeded"], sort_by="start_time", limit=1)
    assert (found.total, found[0].rollout_id) == (1, rollout_id)
    workers = await store.query_workers()
    assert [(one.worker_id, one.status) for one in workers] == [("w1", "idle")]
    assert (await store.statistics())["total_rollouts"] == 1


async def test_a_walk_through_a_store_in_memory() -> None:
    store = agl.InMemoryLightningStore(thread_safe=True)
    await walk(store)
    assert store.capabilities["multi_process"] is False
    await store.close()


@pytest.mark.integration
async def test_a_walk_through_a_server_and_its_client() -> None:
    kept = agl.InMemoryLightningStore()
    server = agl.LightningStoreServer(kept)
    with pytest.raises(UsageError, match="await start"):
        _ = server.endpoint
    await server.start()
    client = agl.LightningStoreClient(server.endpoint)
    try:
        await walk(client)
        assert (await server.statistics())["total_rollouts"] == 1
    finally:
        await client.close()
        await server.stop()


@pytest.mark.integration
async def test_a_client_without_the_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), token="the-token-of-the-server")
    await server.start()
    address = server.endpoint.replace("the-token-of-the-server@", "")
    with pytest.raises(UsageError, match="LEYDEN_STORE_TOKEN"):
        agl.LightningStoreClient(address)
    monkeypatch.setenv("LEYDEN_STORE_TOKEN", "another-token-altogether")
    client = agl.LightningStoreClient(address, patience=1.0)
    try:
        with pytest.raises(StoreError):
            await client.enqueue_rollout({"word": "hi"})
    finally:
        await client.close()
        await server.stop()


def test_options_of_the_original_are_refused_with_one_line() -> None:
    with pytest.raises(ReplacedName, match="eviction_memory_threshold="):
        agl.InMemoryLightningStore(scan_debounce_seconds=1.0)
    with pytest.raises(ReplacedName, match="number of bytes"):
        agl.InMemoryLightningStore(eviction_memory_threshold=0.7)  # pyright: ignore[reportArgumentType]  # a share
    with pytest.raises(ReplacedName, match="leyden store"):
        agl.LightningStoreServer(agl.InMemoryLightningStore(), n_workers=2)
    with pytest.raises(ReplacedName, match="patience="):
        agl.LightningStoreClient("http://token@127.0.0.1:1", retry_delays=(1.0,))


def test_a_server_has_only_the_methods_of_a_store() -> None:
    assert not hasattr(agl.LightningStoreServer(agl.InMemoryLightningStore()), "app")
