"""A server that sleeps while the trainer computes: calls wait, and one that does not wake up is started anew."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest, TokenChunk
from leyden.core.engine.vllm.local_engine import VllmEngine
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.errors import EngineError
from leyden.core.testing.engine_contract import chunks_of, ids_of, until
from leyden.core.testing.servers.vllm_double import CONTEXT, DoubleServer
from leyden.core.testing.tiny_models import tiny_model

OPTIONS = VllmOptions(lora_rank=4, sleep=True)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    cast(Any, tiny_model(max_position_embeddings=CONTEXT)).save_pretrained(tmp_path / "policy")
    return tmp_path / "policy"


@asynccontextmanager
async def served(policy: Path, server: DoubleServer, options: VllmOptions = OPTIONS) -> AsyncGenerator[VllmEngine]:
    engine = VllmEngine(policy, name="tiny", options=options, server=server)
    await engine.start()

    def save(folder: Path) -> None:
        (folder / "adapter_model.safetensors").write_text("one")

    await engine.update_adapters(save, 3)
    yield engine
    await engine.close()


def call() -> GenerateRequest:
    return GenerateRequest(request_id="a", prompt_ids=[3, 1, 4], sampling=Sampling(max_tokens=60))


async def sleep_in_the_middle_of_an_answer(
    engine: VllmEngine, meanwhile: Callable[[], Awaitable[None]]
) -> list[TokenChunk]:
    """Sleep once an answer has begun, and begin another meanwhile; both are held against what was served."""
    chunks: list[TokenChunk] = []

    async def read() -> None:
        async for chunk in engine.generate(call()):
            chunks.append(chunk)

    reading = asyncio.create_task(read())
    await until(lambda: bool(chunks))
    async with engine.asleep():
        another = asyncio.create_task(chunks_of(engine, call()))
        await meanwhile()
        await asyncio.sleep(0.05)  # let what is not held back go on
        count = len(ids_of(chunks))
        await asyncio.sleep(0.05)
        assert len(ids_of(chunks)) == count < 60
        assert not another.done()
    await reading
    return [*chunks, *await another]


def is_served(server: DoubleServer, chunks: list[TokenChunk]) -> bool:
    """Whether the answers are whole and exact under the adapters."""
    ids, logprobs = ids_of(chunks), [value for chunk in chunks for value in chunk.logprobs]
    for answer, values in ((ids[:60], logprobs[:60]), (ids[60:], logprobs[60:])):
        raw = [float(server.double.logprobs(a, "adapter")[b]) for a, b in pairwise([4, *answer])]
        if values != pytest.approx(raw):
            return False
    return len(ids) == 120 and {chunk.version for chunk in chunks if chunk.ids} == {3}


async def test_calls_wait_while_it_sleeps_and_go_on(policy: Path) -> None:
    server = DoubleServer()
    async with served(policy, server) as engine:

        async def asleep() -> None:
            assert server.double.asleep

        chunks = await sleep_in_the_middle_of_an_answer(engine, asleep)
        assert is_served(server, chunks)
        assert not server.double.asleep
        assert len(server.starts) == 1
        paths = [path for path, _ in server.double.requests if path in ("/sleep", "/wake_up")]
        assert paths == ["/sleep", "/wake_up"]


async def test_one_that_does_not_wake_up_is_started_anew(policy: Path) -> None:
    server = DoubleServer()
    async with served(policy, server) as engine:

        async def tire() -> None:
            server.double.sleeps = False

        chunks = await sleep_in_the_middle_of_an_answer(engine, tire)
        assert is_served(server, chunks)
        assert len(server.starts) == 2
        engine.check()


async def test_one_that_dies_asleep_is_started_when_there_is_memory_again(policy: Path) -> None:
    server = DoubleServer()
    async with served(policy, server) as engine:

        async def kill() -> None:
            await server.double.stop()
            await asyncio.sleep(0.1)
            assert len(server.starts) == 1

        chunks = await sleep_in_the_middle_of_an_answer(engine, kill)
        assert is_served(server, chunks)
        assert len(server.starts) == 2


async def test_one_that_comes_up_no_more_breaks_the_engine(policy: Path) -> None:
    server = DoubleServer()
    async with served(policy, server) as engine:
        server.double.sleeps = False
        server.fails = True
        with pytest.raises(EngineError):
            async with engine.asleep():
                assert server.double.asleep
        with pytest.raises(EngineError):
            engine.check()
        with pytest.raises(EngineError):
            async with engine.asleep():
                raise AssertionError("the trainer computes")
        assert len(server.starts) == 2


async def test_an_update_that_fails_leaves_it_awake(policy: Path) -> None:
    server = DoubleServer()
    async with served(policy, server) as engine:
        with pytest.raises(ZeroDivisionError):
            async with engine.asleep():
                raise ZeroDivisionError
        assert not server.double.asleep
        assert len(ids_of(await chunks_of(engine, call()))) == 60


async def test_a_server_that_cannot_sleep_is_refused_at_the_start(policy: Path) -> None:
    engine = VllmEngine(policy, options=OPTIONS, server=DoubleServer(sleeps=None))
    with pytest.raises(EngineError, match=r"refused /is_sleeping \(404\)") as caught:
        await engine.start()
    assert "\n" not in str(caught.value)


async def test_one_that_was_not_told_to_sleep_does_not(policy: Path) -> None:
    server = DoubleServer()
    async with served(policy, server, VllmOptions(lora_rank=4)) as engine:
        async with engine.asleep():
            assert not server.double.asleep
            assert len(ids_of(await chunks_of(engine, call()))) == 60
        assert not any(path in ("/sleep", "/wake_up") for path, _ in server.double.requests)
