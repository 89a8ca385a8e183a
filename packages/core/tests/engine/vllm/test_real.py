"""Against a real vLLM server on this machine's CPU: minutes of starting, so all of it is `long`.

`LEYDEN_VLLM` names the python of an environment that has vLLM (docs/vllm.md).
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine, EngineRecord, GenerateRequest, TokenChunk
from leyden.core.engine.vllm.client import VllmClient
from leyden.core.engine.vllm.local_engine import VllmEngine
from leyden.core.engine.vllm.options import PYTHON, VllmOptions
from leyden.core.engine.vllm.server import VllmServer
from leyden.core.errors import EngineError
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.engine_contract import EngineContract, chunks_of, ids_of
from leyden.core.testing.policies import TinyShape, tiny_policy, with_adapters
from leyden.core.trainer.serving.address import open_gateway

EXAMPLE = Path(__file__).parents[5] / "examples/calculator_langgraph/policy"
ROUNDING = 1e-4
OPTIONS = VllmOptions(lora_rank=8, sleep=True)
SHAPE = TinyShape(vocab=673, hidden=64, head_dim=32, context=640)
"""With the example's vocabulary; vLLM computes no head of the example's size on a CPU."""

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no python that has vLLM"),
]


@dataclass
class Kept:
    """A server that stays up from test to test."""

    folder: Path
    url: str = ""
    key: str = ""


class KeptServer(VllmServer):
    """Finds the server that is kept; with other weights it starts one of its own."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(OPTIONS, log=kept.folder.parent / "another.log")
        self._kept = kept
        self._gone = asyncio.Event()

    async def start(self, source: str) -> VllmClient:
        if source != str(self._kept.folder):
            return await super().start(source)
        self.client = VllmClient(self._kept.url, key=self._kept.key)
        return self.client

    async def ended(self) -> str:
        if self._process is not None:
            return await super().ended()
        await self._gone.wait()
        return ""


def write_policy(folder: Path, seed: int = 0, shape: TinyShape = SHAPE) -> Path:
    cast(Any, tiny_policy(seed, shape).module).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(EXAMPLE / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = write_policy(tmp_path_factory.mktemp("vllm") / "policy")
    server = VllmServer(OPTIONS, log=folder.parent / "vllm.log")
    with asyncio.Runner() as runner:
        client = runner.run(server.start(str(folder)))
        key = client._headers["authorization"].removeprefix("Bearer ")  # pyright: ignore[reportPrivateUsage]  # nobody else may know it
        yield Kept(folder, client.url, key)
        runner.run(server.stop())


@pytest.fixture
async def engine(kept: Kept) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(kept.folder, options=OPTIONS, server=KeptServer(kept))
    await engine.start()
    yield engine
    await engine.close()


class TestRealVllmEngineContract(EngineContract):
    @pytest.fixture(autouse=True)
    def use(self, kept: Kept) -> None:
        self.kept = kept

    def make_engine(self) -> tuple[Engine, list[EngineRecord]]:
        records: list[EngineRecord] = []
        engine = VllmEngine(self.kept.folder, options=OPTIONS, server=KeptServer(self.kept), on_finish=records.append)
        return engine, records

    def new_weights(self) -> Mapping[str, object]:
        return tiny_policy(1, SHAPE).weights()

    def in_flight(self, engine: Engine) -> int:
        assert isinstance(engine, VllmEngine)
        return engine.in_flight


def call(prompt: list[int], sampling: Sampling, top: int = 0) -> GenerateRequest:
    return GenerateRequest(request_id="a", prompt_ids=prompt, sampling=sampling, top_logprobs=top)


def gap(served: list[float], true: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(served, true, strict=True))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0, max_tokens=40),
        Sampling(max_tokens=40),
        Sampling(temperature=0.7, max_tokens=40),
        Sampling(temperature=1.3, top_p=0.8, max_tokens=40),
    ],
    ids=["greedy", "plain", "cold", "truncated"],
)
async def test_log_probabilities_are_those_of_transformers(engine: VllmEngine, sampling: Sampling) -> None:
    import torch

    prompt = [5, 9, 2, 200, 31]
    chunks = await chunks_of(engine, call(prompt, sampling, 3))
    ids = prompt + ids_of(chunks)
    with torch.no_grad():
        logits = cast(Any, tiny_policy(0, SHAPE).module)(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].double()
    raw = logits.log_softmax(-1)
    sampled = ids[len(prompt) :]
    assert (
        gap([v for c in chunks for v in c.logprobs], [float(r[i]) for r, i in zip(raw, sampled, strict=True)])
        < ROUNDING
    )
    for position, row in zip((t for c in chunks for t in c.top or []), raw, strict=True):
        assert dict(position) == pytest.approx({i: float(row[i]) for i in row.topk(3).indices.tolist()}, abs=ROUNDING)
    warm = (logits / (sampling.temperature or 1)).log_softmax(-1)
    kept = [torch.exp(row[row >= row[i]]).sum() - torch.exp(row[i]) for row, i in zip(warm, sampled, strict=True)]
    assert all(mass < sampling.top_p + ROUNDING for mass in kept)
    order = warm.sort(-1, descending=True)
    inside = (order.values.exp().cumsum(-1) - order.values.exp()) < sampling.top_p
    total = (order.values.exp() * inside).sum(-1).log()
    sampling_logprobs = [float(row[i] - t) for row, i, t in zip(warm, sampled, total, strict=True)]
    assert gap([v for c in chunks for v in c.sampling_logprobs], sampling_logprobs) < ROUNDING


async def metric(client: VllmClient, name: str) -> float:
    lines = (await client.request("GET", "/metrics")).decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


async def test_adapters_are_served_to_rounding_fresh_and_from_the_cache(engine: VllmEngine, kept: Kept) -> None:
    prompt = [1 + n % 600 for n in range(400)]  # several blocks of the prefix cache
    client = VllmClient(kept.url, key=kept.key)
    for step in range(1, 4):
        model = PolicyModel(tiny_policy(0, SHAPE).module, str(kept.folder))
        with_adapters(model, LoraOptions(rank=4, alpha=8.0 * step))
        assert model.adapters is not None
        before = await engine.score(prompt)
        await engine.update_adapters(model.adapters.save, step)
        hits = await metric(client, "prefix_cache_hits_total")
        first, second = await engine.score(prompt), await engine.score(prompt)
        assert await metric(client, "prefix_cache_hits_total") > hits
        true = score(model, prompt)
        assert max(gap(first, true), gap(second, true)) < ROUNDING
        assert gap(before, true) > 100 * ROUNDING
    await client.close()


async def test_adapters_that_come_in_the_middle_of_answers(engine: VllmEngine, kept: Kept) -> None:
    models = {0: tiny_policy(0, SHAPE)}
    with_adapters(models.setdefault(1, tiny_policy(0, SHAPE)), LoraOptions(rank=4, alpha=16.0))
    adapters = models[1].adapters
    assert adapters is not None
    answers: list[list[TokenChunk]] = [[] for _ in range(4)]

    async def read(answer: list[TokenChunk], n: int) -> None:
        sampling = Sampling(temperature=0.7 if n % 2 else 1.0, max_tokens=400)
        async for chunk in engine.generate(call([3 + n, 1, 4], sampling)):
            answer.append(chunk)

    reading = [asyncio.create_task(read(answer, n)) for n, answer in enumerate(answers)]
    while not answers[0]:
        await asyncio.sleep(0)
    await engine.update_adapters(adapters.save, 1)
    await asyncio.gather(*reading)
    for n, answer in enumerate(answers):
        ids = [3 + n, 1, 4, *ids_of(answer)]
        assert len(ids) == 403
        true = {version: score(model, ids) for version, model in models.items()}
        versions = [chunk.version for chunk in answer for _ in chunk.ids]
        served = [value for chunk in answer for value in chunk.logprobs]
        assert gap(served, [true[v][2 + position] for position, v in enumerate(versions)]) < ROUNDING
        assert all(a <= b for a, b in pairwise(versions))
    assert {chunk.version for answer in answers for chunk in answer} == {0, 1}


async def test_calls_wait_while_it_sleeps_and_go_on(engine: VllmEngine, kept: Kept) -> None:
    """On a CPU it has no memory to leave: the endpoints, the pause and the forgotten prefix cache are what is seen."""
    model = with_adapters(tiny_policy(0, SHAPE), LoraOptions(rank=4))
    assert model.adapters is not None
    await engine.update_adapters(model.adapters.save, 1)
    client = VllmClient(kept.url, key=kept.key)
    chunks: list[TokenChunk] = []

    async def read() -> None:
        async for chunk in engine.generate(call([3, 1, 4], Sampling(max_tokens=300))):
            chunks.append(chunk)

    reading = asyncio.create_task(read())
    while not chunks:
        await asyncio.sleep(0)
    async with engine.asleep():
        assert b"true" in await client.request("GET", "/is_sleeping")
        sampled = len(ids_of(chunks))
        await asyncio.sleep(0.5)
        assert len(ids_of(chunks)) == sampled < 300
    await reading
    assert b"false" in await client.request("GET", "/is_sleeping")
    ids = [3, 1, 4, *ids_of(chunks)]
    assert len(ids) == 303
    assert gap([v for chunk in chunks for v in chunk.logprobs], score(model, ids)[2:]) < ROUNDING
    await client.close()


async def test_an_abandoned_call_is_aborted_at_the_server(engine: VllmEngine, kept: Kept) -> None:
    client = VllmClient(kept.url, key=kept.key)
    stream = cast(Any, engine.generate(call([3, 1, 4], Sampling(temperature=0))))
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(60):
        while await metric(client, "num_requests_running"):
            await asyncio.sleep(0.05)
    await client.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_and_streams_through_the_gateway(engine: VllmEngine, kept: Kept, stream: bool) -> None:
    from openai import AsyncOpenAI

    store = MemoryStore()
    policy = ServedPolicy(name="policy", engine=engine, codec=HuggingFaceCodec(str(kept.folder)))
    async with open_gateway(store, policy) as (address, _):
        rollout = await store.start_rollout("a task", mode="train")
        token = mint(address.key, rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(base_url=f"{address.url}/a/{token}/v1", api_key="none", max_retries=0) as client:
            function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}
            fields: Any = {
                "model": "policy",
                "messages": [{"role": "user", "content": "1 + 2"}],
                "tools": [{"type": "function", "function": function}],
                "tool_choice": {"type": "function", "function": {"name": "add"}},
                "max_tokens": 30,
                "logprobs": True,
            }
            names: list[str | None]
            if stream:
                parts = [part async for part in await client.chat.completions.create(**fields, stream=True)]
                names = [
                    c.function.name for p in parts for o in p.choices for c in o.delta.tool_calls or [] if c.function
                ]
                assert len(parts) > 1
            else:
                answer: Any = await cast(Any, client).chat.completions.create(**fields)
                names = [made.function.name for made in answer.choices[0].message.tool_calls]
        assert [name for name in names if name] == ["add"]
        spans = (await store.query_spans(rollout.rollout_id)).items
    assert len(spans) == 1
    assert len(cast(bytes, spans[0].attributes[semconv.RESPONSE_IDS])) == 4 * 30
    await store.close()


def core_of(server: int) -> int:
    """The process below the server that computes."""
    (found,) = [
        pid
        for task in Path(f"/proc/{server}/task").iterdir()
        for pid in map(int, (task / "children").read_text().split())
        if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::Eng")
    ]
    return found


@pytest.mark.parametrize("whole", [True, False], ids=["the server", "its engine core"])
async def test_a_killed_server_is_started_again_and_no_call_is_lost(tmp_path: Path, *, whole: bool) -> None:
    folder = write_policy(tmp_path / "policy")
    model = with_adapters(tiny_policy(0, SHAPE), LoraOptions(rank=4))
    assert model.adapters is not None
    server = VllmServer(OPTIONS, log=tmp_path / "vllm.log")
    engine = VllmEngine(folder, options=OPTIONS, server=server)
    await engine.start()
    await engine.update_adapters(model.adapters.save, 1)
    answers: list[list[TokenChunk]] = [[] for _ in range(4)]

    async def read(answer: list[TokenChunk], n: int) -> None:
        async for chunk in engine.generate(call([3 + n, 1, 4], Sampling(max_tokens=200))):
            answer.append(chunk)

    reading = [asyncio.create_task(read(answer, n)) for n, answer in enumerate(answers)]
    while not all(answers):
        await asyncio.sleep(0)
    dead = server.client
    supervisor = server._process  # pyright: ignore[reportPrivateUsage]  # to find its child
    assert supervisor is not None
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    os.kill(int(children[0]) if whole else core_of(int(children[0])), 9)
    await asyncio.gather(*reading)
    assert server.client is not dead
    engine.check()
    for n, answer in enumerate(answers):
        ids = [3 + n, 1, 4, *ids_of(answer)]
        assert len(ids) == 203
        assert {chunk.version for chunk in answer} == {1}
        assert gap([v for chunk in answer for v in chunk.logprobs], score(model, ids)[2:]) < ROUNDING
    await engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(supervisor.pid, 0)


async def test_a_model_that_kills_the_server_at_its_first_call_is_refused(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "policy", shape=replace(SHAPE, head_dim=24))
    engine = VllmEngine(folder, log=tmp_path / "vllm.log")
    with pytest.raises(
        EngineError, match="failed at its first call: RuntimeError: Unsupported CPU attention"
    ) as caught:
        await engine.start()
    assert "\n" not in str(caught.value)
