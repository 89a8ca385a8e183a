"""New tokens per second of the embedded engine, transformers' `generate` and continuous batching, and a plain loop.

All in one run and on the same threads, with prompts that mostly share a prefix, as an agent's do. The model is a random
Qwen3 of 340 thousand parameters on one thread, or that of `--policy`, such as SmolLM2-135M. The loop has prompts of one
length and no sampling parameters: a floor for what the engine adds. `--model 0.5b` has the sizes of Qwen2.5-0.5B and
random weights, for a GPU. The log-probabilities of each engine's answers are compared with transformers' own.

    python benchmarks/engine.py --json engine.json
    python benchmarks/engine.py --policy policies/smollm2-135m --threads 2 --batches 1 8 32
    python benchmarks/engine.py --device cuda --model 0.5b
"""

import argparse
import asyncio
import copy
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, cast
from unittest.mock import patch

import msgspec
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.engine.embedded import linear
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.policy.device import DEVICES, check_device

VOCABULARY, SHARED, NEW = 623, 96, 24
"""Ids of prompts are below `VOCABULARY`, which every model here has."""

BASE = "hf generate"
"""What all others are compared with."""

Run: TypeAlias = Callable[[list[list[int]]], None]


MODELS: dict[str, dict[str, int]] = {
    "tiny": {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
    },
    "0.5b": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}


def make_model(name: str, device: str, policy: Path | None) -> PreTrainedModel:
    """Return the model of a folder, or one with random weights, on `device`."""
    if policy is not None:
        return cast(Any, AutoModelForCausalLM).from_pretrained(policy, dtype=torch.float32).to(device).eval()
    sizes: dict[str, Any] = MODELS[name]
    config = Qwen3Config(max_position_embeddings=1024, tie_word_embeddings=True, initializer_range=0.08, **sizes)
    with torch.device(device):
        return Qwen3ForCausalLM(config).eval()


def make_prompts(count: int, seed: int) -> list[list[int]]:
    """Return `count` prompts of 120 to 170 tokens, eight of each kind, all with the same first 96."""
    shared = random.Random(0)
    prefix = [shared.randrange(VOCABULARY) for _ in range(SHARED)]
    draw = random.Random(seed)
    kinds = [
        prefix + [draw.randrange(VOCABULARY) for _ in range(draw.randint(120, 170) - SHARED)]
        for _ in range(max(1, count // 8))
    ]
    return [kinds[n % len(kinds)] for n in range(count)]


class EngineBench:
    """The embedded engine, kept running between rounds."""

    def __init__(self, model: PreTrainedModel, config: EmbeddedConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._records: list[EngineRecord] = []
        self._engine = EmbeddedEngine(model, name="tiny", config=config, on_finish=self._records.append)
        self._loop.run_until_complete(self._engine.start())

    def __call__(self, prompts: list[list[int]]) -> None:
        """Answer all `prompts` at once."""
        self._records.clear()

        async def one(prompt: list[int]) -> None:
            request = GenerateRequest(request_id="x", prompt_ids=prompt, sampling=Sampling(max_tokens=NEW))
            tokens = 0
            async for chunk in self._engine.generate(request):
                tokens += len(chunk.ids)
            assert tokens == NEW

        async def every() -> None:
            await asyncio.gather(*(one(prompt) for prompt in prompts))

        self._loop.run_until_complete(every())

    @torch.inference_mode()
    def apart(self, model: PreTrainedModel) -> float:
        """Return how far the last round's log-probabilities are from the model's own, as root mean square."""
        squares: list[torch.Tensor] = []
        for record in self._records[:8]:
            ids = torch.tensor([record.prompt_ids + record.response_ids], device=model.device)
            logprobs = (
                cast(Any, model)(input_ids=ids).logits[0, len(record.prompt_ids) - 1 : -1].float().log_softmax(-1)
            )
            own = logprobs.gather(1, torch.tensor(record.response_ids, device=model.device)[:, None])[:, 0]
            squares.append((own.cpu() - torch.tensor(record.logprobs)) ** 2)
        return float(torch.cat(squares).mean().sqrt())

    def close(self) -> None:
        """Stop the engine."""
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()


def left_padded(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask, (B, T) each."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(p)) + p for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def hf_generate(model: PreTrainedModel) -> Run:
    """Return Hugging Face's own batched generation."""

    def run(prompts: list[list[int]]) -> None:
        ids, mask = left_padded(prompts, model.device)
        cast(Any, model).generate(
            ids, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=0, pad_token_id=0
        )

    return run


def hf_continuous(model: PreTrainedModel) -> Run:
    """Return Hugging Face's continuous batching, with its cache of prefixes."""
    config = GenerationConfig(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=0, pad_token_id=0)
    pool = ContinuousBatchingConfig(num_blocks=512, max_batch_tokens=4096)

    def run(prompts: list[list[int]]) -> None:
        answers = cast(Any, model).generate_batch(
            prompts, config, continuous_batching_config=pool, progress_bar=False, persistent_manager=True
        )
        assert all(len(answer.generated_tokens) == NEW for answer in answers.values())

    return run


def plain_loop(model: PreTrainedModel) -> Run:
    """Return a bare loop over the model's forward: prompts cut to one length, so no mask and no padding."""

    @torch.inference_mode()
    def run(prompts: list[list[int]]) -> None:
        shortest = min(map(len, prompts))
        ids, cache = torch.tensor([p[:shortest] for p in prompts], device=model.device), None
        for _ in range(NEW):
            out = cast(Any, model)(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, logprobs = out.past_key_values, out.logits[:, -1].log_softmax(-1)
            ids = torch.multinomial(logprobs.exp(), 1)
            logprobs.gather(1, ids).tolist()

    return run


def measure(runs: dict[str, Run], batch: int, rounds: int) -> dict[str, float]:
    """Return new tokens per second of each, best of `rounds`, taken in turns so that a busy machine slows all."""
    for run in runs.values():
        run(make_prompts(batch, seed=-1))
    best = dict.fromkeys(runs, float("inf"))
    for n in range(rounds):
        prompts = make_prompts(batch, seed=n)
        for name, run in runs.items():
            begin = time.perf_counter()
            run(prompts)
            best[name] = min(best[name], time.perf_counter() - begin)
    return {name: round(batch * NEW / seconds, 1) for name, seconds in best.items()}


def sides(model: PreTrainedModel, arguments: argparse.Namespace) -> dict[str, Callable[[], Run]]:
    """Return what can be measured by its name, each as a function that makes it."""
    plain = EmbeddedConfig(threads=arguments.threads)

    def engine(**changes: Any) -> Callable[[], Run]:
        return lambda: EngineBench(model, msgspec.structs.replace(plain, **changes))

    def unpacked() -> Run:
        with patch.object(linear, "packs_weights", return_value=False):
            return EngineBench(model, plain)

    found: dict[str, Callable[[], Run]] = {
        "engine": engine(),
        "engine, bfloat16": engine(precision="bfloat16"),
        "engine, generic": engine(lean=False),
        "engine, no prefixes": engine(prefix_cache_tokens=0),
    }
    if arguments.device == "cpu":
        found["engine, int8"] = engine(precision="int8")
        if linear.packs_weights(sum(p.numel() for p in model.parameters()), arguments.device):
            found["engine, weights not packed"] = unpacked
    found[BASE] = lambda: hf_generate(model)
    found["hf generate, bfloat16"] = lambda: hf_generate(cast(Any, copy.deepcopy(model)).bfloat16())
    if arguments.continuous:
        found["hf continuous"] = lambda: hf_continuous(model)
    return found | {"plain loop": lambda: plain_loop(model)}


def main() -> None:
    """Measure, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--policy", type=Path, help="folder of a policy, in place of random weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--continuous", action="store_true", help="also measure transformers' continuous batching")
    parser.add_argument("--sides", default="", metavar="REGEX", help="measure only those whose name it finds")
    arguments = parser.parse_args()
    check_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model = make_model(arguments.model, arguments.device, arguments.policy)
    makers = sides(model, arguments)
    wanted = [name for name in makers if name == BASE or re.search(arguments.sides, name)]
    runs: dict[str, Run] = {name: makers[name]() for name in wanted}
    engines = {name: run for name, run in runs.items() if isinstance(run, EngineBench)}
    figures = {str(batch): measure(runs, batch, arguments.rounds) for batch in arguments.batches}
    apart = {name: engine.apart(model) for name, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{arguments.threads} threads"
    print(f"new tokens/s, {sum(p.numel() for p in model.parameters()):,} parameters, {where}, {NEW} new tokens")
    print(f"{'':>28}" + "".join(f"{batch:>12} sequences" for batch in figures))
    for name in runs:
        cells = [f"{row[name]:>10,.1f} ({row[name] / row[BASE]:>5.2f} ×)   " for row in figures.values()]
        print(f"{name:>28}" + "".join(cells))
    print("log-probabilities, root mean square of the difference to transformers' own:")
    print("\n".join(f"{name:>28}  {distance:.1e}" for name, distance in apart.items()))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"new_tokens_per_second": figures, "log_probabilities_apart": apart, "new_tokens": NEW, "device": where}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
