import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest, ModelInfo, TokenChunk
from leyden.core.engine.vllm.client import VllmClient
from leyden.core.engine.vllm.replicas import ReplicaEngine, ReplicaServer
from leyden.core.errors import EngineError
from leyden.core.testing.engine_contract import chunks_of, ids_of, until
from leyden.core.testing.servers.vllm_double import CONTEXT, VOCAB, VllmDouble

MODEL = ModelInfo(name="tiny", context_length=CONTEXT - 1, vocab_size=VOCAB)
GREEDY = Sampling(temperature=0, max_tokens=40)


@pytest.fixture
async def doubles() -> AsyncIterator[list[VllmDouble]]:
    doubles = [VllmDouble() for _ in range(3)]
    for double in doubles:
        await double.start()
    yield doubles
    for double in doubles:
        await double.stop()


@pytest.fixture
async def engine(doubles: list[VllmDouble]) -> AsyncIterator[ReplicaEngine]:
    engine = ReplicaEngine(MODEL, wait_seconds=30)
    await engine.start()
    for double in doubles[:2]:
        await engine.add(double.url)
    yield engine
    await engine.close()


def call(rollout: str, sampling: Sampling = GREEDY) -> GenerateRequest:
    return GenerateRequest(request_id=rollout, prompt_ids=[3, 1, 4], sampling=sampling, rollout_id=rollout)


def answered(double: VllmDouble) -> int:
    return sum(bool(body.get("stream")) for _, body in double.requests)


async def test_a_rollout_stays_on_its_replica_and_rollouts_go_by_the_tokens_in_flight(
    engine: ReplicaEngine, doubles: list[VllmDouble]
) -> None:
    for double in doubles:
        double.token_seconds = 0.01
    calls = [asyncio.create_task(chunks_of(engine, call(rollout))) for rollout in ("a", "b", "c", "d")]
    await until(lambda: sum(double.running for double in doubles) == 4)
    assert [double.running for double in doubles] == [2, 2, 0]
    assert all(tokens > 0 for tokens in engine.replicas.values())
    await engine.add(doubles[2].url)
    assert engine.replicas[doubles[2].url] == 0
    fifth = asyncio.create_task(chunks_of(engine, call("e")))
    await until(lambda: doubles[2].running == 1)
    await asyncio.gather(*calls, fifth)
    assert set(engine.replicas.values()) == {0}
    for _ in range(2):
        for rollout in ("a", "b", "c", "d", "e"):
            await chunks_of(engine, call(rollout))
    assert [answered(double) for double in doubles] == [6, 6, 3]


@pytest.mark.parametrize("temperature", [0, 0.7])
async def test_a_call_whose_replica_dies_goes_on_with_another(
    engine: ReplicaEngine, doubles: list[VllmDouble], temperature: float
) -> None:
    whole = ids_of(await chunks_of(engine, call("a")))
    first = next(double for double in doubles if answered(double))
    first.die_after = 17
    again = await chunks_of(engine, call("a", msgspec.structs.replace(GREEDY, temperature=temperature)))
    assert len(ids_of(again)) == 40
    assert temperature or ids_of(again) == whole
    assert again[-1].finish_reason == "length"
    assert first.url not in engine.replicas
    raw = [float(doubles[2].logprobs(a)[b]) for a, b in zip([4, *ids_of(again)], ids_of(again), strict=False)]
    assert [value for chunk in again for value in chunk.logprobs] == pytest.approx(raw)


async def test_a_call_without_a_replica_waits_for_one(doubles: list[VllmDouble]) -> None:
    engine = ReplicaEngine(MODEL, wait_seconds=30)
    waiting = asyncio.create_task(chunks_of(engine, call("a")))
    await engine.add(doubles[0].url)
    assert len(ids_of(await waiting)) == 40
    await engine.close()


async def test_a_call_that_finds_none_fails_in_one_line() -> None:
    engine = ReplicaEngine(MODEL, wait_seconds=0.01)
    with pytest.raises(EngineError, match="no replica was added within"):
        await chunks_of(engine, call("a"))
    await engine.close()


async def test_whoever_asks_is_told_when_the_last_replica_is_lost(
    engine: ReplicaEngine, doubles: list[VllmDouble]
) -> None:
    calls = [asyncio.create_task(chunks_of(engine, call(rollout))) for rollout in ("a", "b")]
    await until(lambda: all(double.running for double in doubles[:2]))
    await doubles[0].stop()
    await until(lambda: len(engine.replicas) == 1)
    engine.check()
    await doubles[1].stop()
    await until(lambda: not engine.replicas)
    with pytest.raises(EngineError, match=f"no replica is left to serve the policy: .* {doubles[1].url} "):
        engine.check()
    assert not any(task.done() for task in calls), "they wait for another one"
    await engine.add(doubles[2].url)
    engine.check()
    assert [len(ids_of(await task)) for task in calls] == [40, 40]
    await engine.remove(doubles[2].url)
    engine.check()


async def test_a_loss_is_known_while_the_connection_to_the_lost_replica_is_being_closed(
    engine: ReplicaEngine, doubles: list[VllmDouble], monkeypatch: pytest.MonkeyPatch
) -> None:
    close, may_close = VllmClient.close, asyncio.Event()

    async def closed_later(client: VllmClient) -> None:
        await may_close.wait()
        await close(client)

    await engine.remove(doubles[1].url)
    waiting = asyncio.create_task(chunks_of(engine, call("a")))
    await until(lambda: bool(doubles[0].running))
    monkeypatch.setattr(VllmClient, "close", closed_later)
    await doubles[0].stop()
    await until(lambda: not engine.replicas)
    with pytest.raises(EngineError, match="no replica is left"):
        engine.check()
    may_close.set()
    await engine.add(doubles[2].url)
    engine.check()
    assert len(ids_of(await waiting)) == 40


async def test_a_replica_that_is_taken_away_gives_its_calls_to_others(
    engine: ReplicaEngine, doubles: list[VllmDouble]
) -> None:
    chunks: list[TokenChunk] = []
    async for chunk in engine.generate(call("a")):
        chunks.append(chunk)
        if len(chunks) == 2:
            await engine.remove(next(double.url for double in doubles if double.running))
    assert len(ids_of(chunks)) == 40
    assert [answered(double) for double in doubles] == [1, 1, 0]


@pytest.mark.parametrize("drain", [False, True])
async def test_an_update_breaks_calls_off_or_drains_them(
    engine: ReplicaEngine, doubles: list[VllmDouble], drain: bool
) -> None:
    chunks: list[TokenChunk] = []
    async for chunk in engine.generate(call("a")):
        chunks.append(chunk)
        if len(chunks) == 1:
            async with engine.updating(5, drain=drain):
                await until(lambda: not any(double.running for double in doubles))
                for double in doubles:
                    double.salt = 5
    versions = {chunk.version for chunk in chunks if chunk.ids}
    assert versions == ({0} if drain else {0, 5})
    assert len(ids_of(chunks)) == 40
    assert engine.version == 5
    ids = [4, *ids_of(chunks)]
    salts = [chunk.version for chunk in chunks for _ in chunk.ids]
    for index, (before, token, salt) in enumerate(zip(ids, ids[1:], salts, strict=False)):
        doubles[0].salt = salt
        logprob = [value for chunk in chunks for value in chunk.logprobs][index]
        assert logprob == pytest.approx(float(doubles[0].logprobs(before)[token]))


@pytest.mark.parametrize(
    "fields", [{"grammar": "start: /a*/"}, {"presence_penalty": 0.5}, {"logit_bias": ((7, -3.0),)}]
)
async def test_a_response_that_a_server_could_not_continue_is_generated_again(
    engine: ReplicaEngine, doubles: list[VllmDouble], fields: dict[str, Any]
) -> None:
    answer = asyncio.create_task(chunks_of(engine, call("a", msgspec.structs.replace(GREEDY, **fields))))
    await until(lambda: any(double.running for double in doubles))
    async with engine.updating(5):
        for double in doubles:
            double.salt = 5
    chunks = await answer
    assert {chunk.version for chunk in chunks} == {5}
    assert len(ids_of(chunks)) == 40
    assert chunks[-1].finish_reason == "length"
    assert [body["prompt"] for double in doubles for _, body in double.requests if body.get("stream")] == [
        [3, 1, 4]
    ] * 2


async def test_an_update_that_fails_leaves_the_version(engine: ReplicaEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with engine.updating(5):
            raise ZeroDivisionError
    assert engine.version == 0
    assert len(ids_of(await chunks_of(engine, call("a")))) == 40


async def test_weights_that_somebody_else_moves_are_not_written(engine: ReplicaEngine) -> None:
    with pytest.raises(EngineError, match="does not transfer weights"):
        await engine.update_weights({}, 1)


async def test_a_server_that_tells_raw_log_probabilities_is_refused() -> None:
    double = VllmDouble(raw=True)
    engine = ReplicaEngine(MODEL)
    with pytest.raises(EngineError, match="start it with --logprobs-mode processed_logprobs"):
        await engine.add(await double.start())
    assert engine.replicas == {}
    await engine.close()
    await double.stop()


@pytest.mark.parametrize(
    ("model", "context", "message"), [("other", 10, "serves base, not other"), (None, CONTEXT, "at least 321")]
)
async def test_a_server_of_another_policy_is_refused(model: str | None, context: int, message: str) -> None:
    double = VllmDouble()
    engine = ReplicaEngine(msgspec.structs.replace(MODEL, context_length=context))
    with pytest.raises(EngineError, match=message):
        await engine.add(await double.start(), model=model)
    await engine.close()
    await double.stop()


async def test_a_lost_server_of_fixed_weights_is_used_again_once_it_answers(doubles: list[VllmDouble]) -> None:
    engine = ReplicaEngine(MODEL, fixed=True, wait_seconds=30)
    await engine.add(doubles[0].url)
    doubles[0].die_after = 17
    waiting = asyncio.create_task(chunks_of(engine, call("a")))
    await until(lambda: not engine.replicas)
    await doubles[0].start(port=doubles[0].port)
    assert len(ids_of(await waiting)) == 40
    assert set(engine.replicas) == {doubles[0].url}
    with pytest.raises(EngineError, match="are fixed"):
        async with engine.updating(1):
            pass
    await engine.close()


async def test_a_server_that_fails_and_reports_that_it_is_healthy_is_left(doubles: list[VllmDouble]) -> None:
    engine = ReplicaEngine(MODEL, fixed=True, wait_seconds=30)
    for double in doubles[:2]:
        await engine.add(double.url)
    await chunks_of(engine, call("a"))
    failing = next(double for double in doubles if answered(double))
    failing.paused = True
    assert len(ids_of(await chunks_of(engine, call("a")))) == 40
    assert failing.url not in engine.replicas
    failing.paused = False
    await until(lambda: failing.url in engine.replicas)
    await engine.close()


async def test_a_server_that_does_not_answer_yet_is_added_later(
    doubles: list[VllmDouble], caplog: pytest.LogCaptureFixture
) -> None:
    engine = ReplicaEngine(MODEL, fixed=True, wait_seconds=30)
    url, port = doubles[0].url, doubles[0].port
    await doubles[0].stop()
    doubles[0].raw = True
    engine.add_later(ReplicaServer(url=url))
    waiting = asyncio.create_task(chunks_of(engine, call("a")))
    await doubles[0].start(port=port)
    await until(lambda: "is not used as a replica" in caplog.text)
    doubles[0].raw = False
    assert len(ids_of(await waiting)) == 40
    await engine.close()
