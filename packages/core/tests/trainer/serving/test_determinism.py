"""What a deterministic run asks of its process, its engine and its configuration."""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest
import torch

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest, TokenChunk
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.errors import UsageError
from leyden.core.policy.repeatable import repeatable
from leyden.core.testing.tiny_models import tiny_model
from leyden.core.trainer.config import RunConfig, load_config, save_config
from leyden.core.trainer.serving.serving import engine_config

CONFIG = RunConfig(name="run", agent="agent.py:agent", policy="policy", deterministic=True)

Answer = tuple[list[int], list[float]]


async def answers(config: EmbeddedConfig, prompts: list[list[int]], before: list[list[int]]) -> list[Answer]:
    """What a fresh engine answers to `prompts` at once, each with a seed of its own, after it has answered `before`."""
    engine = EmbeddedEngine(tiny_model("qwen3"), name="tiny", config=config)

    async def ask(prompt: list[int]) -> Answer:
        sampling = Sampling(max_tokens=12, seed=sum(prompt))
        request = GenerateRequest(request_id="call", prompt_ids=prompt, sampling=sampling)
        chunks: list[TokenChunk] = [chunk async for chunk in engine.generate(request)]
        return [i for chunk in chunks for i in chunk.ids], [value for chunk in chunks for value in chunk.logprobs]

    await engine.start()
    try:
        await asyncio.gather(*map(ask, before))
        return list(await asyncio.gather(*map(ask, prompts)))
    finally:
        await engine.close()


async def test_an_answer_has_the_same_bits_whatever_else_the_engine_does_or_did() -> None:
    draw = random.Random(0)
    system = [draw.randrange(61) for _ in range(40)]
    prompts = [system + [draw.randrange(61) for _ in range(draw.randrange(1, 90))] for _ in range(8)]
    config = engine_config(CONFIG)

    alone = [(await answers(config, [prompt], []))[0] for prompt in prompts]

    assert await answers(config, prompts, []) == alone
    assert await answers(config, prompts[::-1], [system * 4, *prompts]) == alone[::-1]


def test_torch_computes_on_one_thread_and_strictly_until_the_run_is_over() -> None:
    def settings() -> tuple[int, bool]:
        return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()

    before = settings()
    with repeatable(False):
        assert settings() == before
    with pytest.raises(ZeroDivisionError), repeatable(True):
        assert settings() == (1, True)
        raise ZeroDivisionError
    assert settings() == before


def test_more_threads_are_refused() -> None:
    with pytest.raises(UsageError, match="a deterministic run computes on one thread; remove --threads 2"):
        RunConfig(name="run", agent="agent.py:agent", policy="policy", deterministic=True, threads=2)


def test_a_loop_that_depends_on_time_is_refused() -> None:
    with pytest.raises(UsageError, match="the duration of an update decides"):
        msgspec.structs.replace(CONFIG, algorithm_config={"loop": "async"})
    assert msgspec.structs.replace(CONFIG, algorithm_config={"loop": "one_off"}).deterministic


def test_the_choice_is_kept_with_the_run(tmp_path: Path) -> None:
    save_config(CONFIG, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").deterministic
