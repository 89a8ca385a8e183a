"""Two workers of one gateway: the requests of one attempt reach either, and get what a single process would answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.shared.folder import SharedFolder, forget_worker
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.engine_contract import until
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine

pytestmark = pytest.mark.integration

CODEC = ByteCodec()
AGAIN = {"x-stainless-retry-count": "1"}
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Site:
    """The base URL of one attempt at each worker, the store, and the workers' folder."""

    def __init__(self, urls: list[str], store: MemoryStore, rollout_id: str, folder: Path) -> None:
        self.urls, self.store, self.folder, self._rollout_id = urls, store, folder, rollout_id

    async def post(self, worker: int, headers: dict[str, str] | None = None) -> str:
        async with httpx.AsyncClient(timeout=30) as http:
            answer = await http.post(f"{self.urls[worker]}/chat/completions", json=BODY, headers=headers)
        return answer.json()["choices"][0]["message"]["content"]

    def client(self, worker: int) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.urls[worker], api_key="none", max_retries=0)

    async def calls(self) -> list[Span]:
        spans = (await self.store.query_spans(self._rollout_id)).items
        return [span for span in spans if semconv.CALL_ID in span.attributes]


@asynccontextmanager
async def two_workers(folder: Path, chunk_delay: float = 0.0) -> AsyncGenerator[Site]:
    store, key, answers = MemoryStore(), new_key(), 0

    def script(_: GenerateRequest) -> ScriptedAnswer:
        nonlocal answers
        answers += 1
        return ScriptedAnswer(ids=CODEC.answer(f"answer {answers}"), chunk_size=3, chunk_delay=chunk_delay)

    rollout = await store.start_rollout("task", mode="train")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    async with AsyncExitStack() as closing:
        urls: list[str] = []
        for name in ("worker-1", "worker-2"):
            engine = ScriptedEngine(
                script, model=ModelInfo(name="scripted", context_length=4096, vocab_size=VOCABULARY)
            )
            gateway = Gateway(store, ServedPolicy(name="policy", engine=engine, codec=CODEC), key)
            shared = SharedFolder(folder, name)
            closing.callback(shared.close)
            gateway.join_workers(shared)
            server = GatewayServer(gateway.app, grace=0)
            urls.append(f"{await server.start()}/a/{token}/v1")
            closing.push_async_callback(server.stop)
        yield Site(urls, store, rollout.rollout_id, folder)


async def test_a_marked_retry_gets_the_answer_that_another_worker_recorded(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as site:
        assert await site.post(0) == "answer 1"
        assert await site.post(1, AGAIN) == "answer 1"
        assert await site.post(1) == "answer 2", "the same request without a mark is another call"
        assert len(await site.calls()) == 2


async def test_a_marked_retry_waits_for_the_answer_that_another_worker_is_generating(tmp_path: Path) -> None:
    async with two_workers(tmp_path, chunk_delay=0.1) as site:
        first = asyncio.create_task(site.post(0))
        await until(lambda: any(any(path.read_bytes()) for path in (tmp_path / "in-progress").iterdir()))
        assert await asyncio.gather(site.post(1, AGAIN), first) == ["answer 1", "answer 1"]
        assert len(await site.calls()) == 1


async def test_a_retry_does_not_wait_for_a_worker_that_died(tmp_path: Path) -> None:
    dead = SharedFolder(tmp_path, "worker-0")
    async with two_workers(tmp_path) as site:
        await site.post(0)
        [call] = await site.calls()
        with dead.requests.in_progress(str(call.attributes[semconv.FINGERPRINT])):
            waiting = asyncio.create_task(site.post(1, AGAIN))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            forget_worker(tmp_path, "worker-0")
            assert await waiting == "answer 1"
    dead.close()


async def test_an_answer_that_did_not_arrive_is_sent_by_another_worker_once(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as site:
        await site.post(0)
        [call] = await site.calls()
        shared = SharedFolder(tmp_path, "worker-0")
        shared.requests.mark_undelivered(str(call.attributes[semconv.FINGERPRINT]))
        assert await site.post(1) == "answer 1"
        assert await site.post(1) == "answer 2"
        shared.close()


async def test_a_conversation_goes_on_at_another_worker_and_a_deletion_holds_there(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as site, site.client(0) as here, site.client(1) as there:
        first = await here.responses.create(model="m", input="one?")
        second = await there.responses.create(model="m", input="two?", previous_response_id=first.id)
        assert (await here.responses.retrieve(second.id)).output_text == "answer 2"
        await there.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await here.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await here.responses.create(model="m", input="three?", previous_response_id=first.id)
        third = await here.responses.create(model="m", input="three?", previous_response_id=second.id)
        assert third.output_text == "answer 3"
