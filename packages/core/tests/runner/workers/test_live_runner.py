import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from leyden.core.data import semconv
from leyden.core.errors import RewardError
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.runner.workers.live import run_live
from leyden.core.store.http.client import HttpStore
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import TEST_KEY, finished, rewards_in
from leyden.core.testing.scripted_engine import ScriptedEngine

CALL = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "hello"}]}
PROVIDER = "https://api.openai.com/v1/chat/completions"


@pytest.fixture
async def store() -> AsyncGenerator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
async def url(store: MemoryStore) -> AsyncGenerator[str]:
    codec = ByteCodec()
    engine = ScriptedEngine(lambda request: codec.answer("hi"))
    stores = store_app(store, authorize=lambda token: token == "token")
    policy = ServedPolicy(name="policy", engine=engine, codec=codec)
    server = GatewayServer(Gateway(store, policy, TEST_KEY, mounts={"/store": stores}).app)
    yield await server.start()
    await server.stop()


class Thread(threading.Thread):
    """`run_live` on a loop of its own, as a trainer runs it."""

    def __init__(self, url: str, agent: Any, reward: Any) -> None:
        super().__init__()
        self.url, self.agent, self.reward = url, agent, reward
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopped: asyncio.Event | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self.live())
        except BaseException as error:
            self.failure = error

    async def live(self) -> None:
        self.loop, self.stopped = asyncio.get_running_loop(), asyncio.Event()
        loaded = LoadedAgent(source=AgentSource.of(self.agent), reward=self.reward)
        await run_live(
            loaded,
            HttpStore(f"{self.url}/store", "token"),
            gateway_url=self.url,
            key=TEST_KEY,
            concurrency=8,
            processes=LiveProcesses("shared", loaded),
            stopped=self.stopped,
        )

    async def end(self) -> None:
        if self.loop is not None and self.stopped is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.stopped.set)
        await asyncio.to_thread(self.join)


def wrapped() -> list[Any]:
    """What routing wraps."""
    return [vars(httpx.Client)["_transport_for_url"], threading.Thread.start]


def ask() -> str:
    with httpx.Client() as client:
        answer = client.post(PROVIDER, json=CALL).raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


async def test_a_live_agent_is_routed_while_it_runs_and_the_process_is_left_as_it_was(
    store: MemoryStore, url: str
) -> None:
    original = wrapped()

    def agent(task: Any) -> str:
        return ask()

    def reward(task: Any, result: str) -> float:
        return float(len(result))

    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(8)]
    thread = Thread(url, agent, reward)
    thread.start()
    ended = await finished(store, ids)
    with pytest.raises(httpx.ConnectError, match="no attempt is open"):
        await asyncio.to_thread(ask)
    await thread.end()
    assert thread.failure is None
    assert {rollout.status for rollout in ended} == {"succeeded"}
    spans = (await store.query_spans(ids[0])).items
    assert len([span for span in spans if semconv.CALL_ID in span.attributes]) == 1
    assert rewards_in(spans) == [2.0]
    assert wrapped() == original


async def test_a_live_reward_that_cannot_be_called_leaves_the_process_as_it_was(url: str) -> None:
    original = wrapped()
    thread = Thread(url, lambda task: task, "score")  # pyright: ignore[reportUnknownLambdaType]
    thread.start()
    await thread.end()
    assert isinstance(thread.failure, RewardError)
    assert wrapped() == original
