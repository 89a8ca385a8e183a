"""A policy with random weights, served by the real gateway, for tests of what frameworks do with grammars.

Only a grammar makes an answer of such a policy valid: whatever the grammar allows will be written some day.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from leyden.core.data import semconv
from leyden.core.data.identity import new_key
from leyden.core.data.rollout import AttemptedRollout, Task
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Span
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.runner import Runner
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.gateway_bench import only_this_machine
from leyden.core.testing.running import runner_config
from leyden.core.testing.tiny_models import tiny_model
from leyden.core.testing.tiny_tokenizers import CHATML, save_tiny_tokenizer
from leyden.core.tracing import context_propagation
from leyden.core.tracing.spans.export import start_recording
from leyden.core.tracing.wire import gateway_pool, routing

T = TypeVar("T")

CONTEXT, VOCABULARY = 16384, 400
MAX_TOKENS = 2500
"""More tokens than any answer of the tests needs whose fields are bounded."""
CONCURRENCY = 32
PATIENCE_SECONDS = 30.0
MARKS = ("<tool_call>", "</tool_call>")
TEMPLATE = """{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }}
{% endfor %}<tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ (m.content or '')[-40:] }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
"""ChatML with calls in the format of Hermes; of long texts only the end is read, as the policy understands nothing."""


class RandomPolicy:
    """The gateway with its embedded engine, on a thread of its own; `runs` runs agents on it.

    With `model`, its tokenizer is in `folder`; otherwise the model is a random one, and `folder` gets its tokenizer.
    """

    def __init__(self, folder: Path, seed: int = 0, model: Any = None) -> None:
        if model is None:
            save_tiny_tokenizer(folder, TEMPLATE, [*CHATML, *MARKS], end="<|im_end|>")
            model = tiny_model("qwen3", seed, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)
        config = EmbeddedConfig(seed=seed, max_batch=CONCURRENCY)
        self._engine = EmbeddedEngine(model, name="random", config=config, tokenizer=str(folder))
        self._codec, self._key, self._url = HuggingFaceCodec(folder), new_key(), ""
        self._store = MemoryStore()
        self._server: GatewayServer | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="random policy")

    def start(self) -> None:
        """Listen on a free port."""
        self._thread.start()
        self._url = self._on_loop(self._start())

    def stop(self) -> None:
        """End the server, the engine and the thread."""
        self._on_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def runs(
        self, agent: Any, score: Callable[[Any, Any], float], tasks: Sequence[Task]
    ) -> list[tuple[AttemptedRollout, list[Span]]]:
        """Run `agent` on each task, under a real runner with wire routing; return the rollouts with their spans."""
        ids = [(await self._store.enqueue_rollout(task, mode="train")).rollout_id for task in tasks]
        async with self._runner(agent, score):
            left = set(ids)
            while left:
                ended = await self._store.wait_for_rollouts(rollout_ids=sorted(left), timeout=PATIENCE_SECONDS)
                done = {one.rollout_id for one in ended} & left
                assert done, f"{len(left)} rollouts do not end"
                left -= done
        found: list[tuple[AttemptedRollout, list[Span]]] = []
        for rollout_id in ids:
            rollout = await self._store.get_rollout_by_id(rollout_id)
            assert isinstance(rollout, AttemptedRollout)
            found.append((rollout, (await self._store.query_spans(rollout_id)).items))
        return found

    @asynccontextmanager
    async def _runner(self, agent: Any, score: Callable[[Any, Any], float]) -> AsyncGenerator[None]:
        recorder = await start_recording(self._store.add_many_spans)
        context_propagation.install()
        routing.install(fail_closed=True)
        config = runner_config(
            gateway_url=self._url, key=self._key, concurrency=CONCURRENCY, reward=score, cancel_seconds=5
        )
        stopped = asyncio.Event()
        try:
            with only_this_machine():
                runner = Runner(self._store, AgentSource.of(agent), config=config, recorder=recorder)
                running = asyncio.create_task(runner.run_until(stopped))
                try:
                    yield
                finally:
                    stopped.set()
                    await running
        finally:
            await gateway_pool.aclose()
            routing.uninstall()
            context_propagation.uninstall()
            await recorder.stop()

    async def _start(self) -> str:
        await self._engine.start()
        sampling = Sampling(max_tokens=MAX_TOKENS)
        policy = ServedPolicy(name="policy", engine=self._engine, codec=self._codec, sampling=sampling)
        self._server = GatewayServer(Gateway(self._store, policy, self._key).app)
        return await self._server.start()

    async def _stop(self) -> None:
        assert self._server is not None
        await self._server.stop()
        await self._engine.close()
        await self._store.close()
        await asyncio.sleep(0)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)


@contextmanager
def random_policy(folder: Path, seed: int = 0, model: Any = None) -> Generator[RandomPolicy]:
    """Serve a random policy in the block, with its files in `folder`, or `model`, whose tokenizer is there."""
    policy = RandomPolicy(folder, seed, model)
    policy.start()
    try:
        yield policy
    finally:
        policy.stop()


def calls_of(spans: list[Span]) -> list[Span]:
    """Return the records of model calls."""
    return [span for span in spans if semconv.CALL_ID in span.attributes]
