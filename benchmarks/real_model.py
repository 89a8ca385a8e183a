"""What each part of a training step takes at the size of SmolLM2-135M, beside what plain torch needs for the same.

A step of the sums example: groups of eight rollouts of one call, prompts of 36 tokens, answers of 13. The engine's
floor is a loop over transformers' own forward with one prompt length and no sampling parameters. The update's is a
plain forward and backward pass over rows that hold as many tokens as the update reads, clipping and the same AdamW;
beside it stands the plain update of a padded row for each rollout. Publishing is held against one copy of the weights,
a checkpoint against its bytes written and synced to the same disk. Each and its floor take turns in one process.

    python benchmarks/real_model.py --policy policies/smollm2-135m --threads 2 --json real_model.json
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.policy.checkpoints.checkpoint import PendingCheckpoint
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import RolloutShape, synthetic_rollouts

SYSTEM, QUESTION, ANSWER, GROUP = 22, 14, 13, 8
Work = Callable[[], object]
Times = dict[str, list[tuple[float, float]]]


def load(policy: Path | None) -> PolicyModel:
    """The policy in a folder, or random weights of SmolLM2-135M's shape."""
    if policy is not None:
        return PolicyModel.load(policy)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8_192,
        tie_word_embeddings=True,
    )
    make: Any = LlamaForCausalLM
    return PolicyModel(make(config), "random")


def rollouts(count: int, vocabulary: int) -> list[WeightedTransition]:
    """Transitions of one call each, drawn at temperature 1."""
    shape = RolloutShape(system=SYSTEM, question=QUESTION, calls=(ANSWER,), observation=0)
    trained = synthetic_rollouts(count, vocabulary, shape=shape, group_size=GROUP)
    return [replace(item, transition=replace(item.transition, temperature=1.0)) for item in trained]


class Engine:
    """The embedded engine on the policy's weights, kept running between rounds."""

    def __init__(self, model: PolicyModel, threads: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = EmbeddedEngine(model.module, name="benchmark", config=EmbeddedConfig(threads=threads))
        self._loop.run_until_complete(self._engine.start())
        self._version = 0

    def answer(self, prompts: list[list[int]]) -> None:
        """Answer all `prompts` at once, with weights that are new: no prompt is known."""

        async def one(prompt: list[int]) -> None:
            request = GenerateRequest(request_id="x", prompt_ids=prompt, sampling=Sampling(max_tokens=ANSWER))
            async for _ in self._engine.generate(request):
                pass

        async def every() -> None:
            await asyncio.gather(*(one(prompt) for prompt in prompts))

        self._loop.run_until_complete(every())

    def publish(self, model: PolicyModel) -> None:
        """Serve the policy's weights."""
        self._version += 1
        self._loop.run_until_complete(self._engine.update_weights(model.weights(), self._version))

    def close(self) -> None:
        """Stop."""
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()


@torch.inference_mode()
def plain_decode(model: PolicyModel, prompts: list[list[int]]) -> None:
    """A bare loop over the model's own forward; all prompts are equally long."""
    ids, cache = torch.tensor(prompts), None
    for _ in range(ANSWER):
        out = cast(Any, model.module)(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logprobs = out.past_key_values, out.logits[:, -1].log_softmax(-1)
        ids = torch.multinomial(logprobs.exp(), 1)
        logprobs.gather(1, ids).tolist()


def plain_update(model: PolicyModel, rows: list[Tensor], first: int) -> None:
    """Leave the gradient of the log-probabilities of all tokens from place `first` on in the model."""
    for row_BT in rows:
        hidden_BTH = cast(Any, model.module).model(input_ids=row_BT, use_cache=False).last_hidden_state
        logits_NV = model.head(hidden_BTH[:, first - 1 : -1].flatten(0, 1))
        chosen_N = logits_NV.log_softmax(-1).gather(1, row_BT[:, first:].reshape(-1, 1))
        torch.autograd.backward(-chosen_N.mean())


def optimizer_step(model: PolicyModel, optimizer: torch.optim.Optimizer, gradient: Work) -> None:
    """Take a step on a gradient that `gradient` leaves in the model."""
    optimizer.zero_grad(set_to_none=True)
    gradient()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def update_rows(trained: list[WeightedTransition], *, shared: bool) -> list[Tensor]:
    """Rows of tokens: one for each rollout, or for each group one that has its prompt once; 32 or 4 at a time."""
    whole = [[*item.transition.prompt_ids, *item.transition.response_ids] for item in trained]
    if shared:
        groups = [whole[at : at + GROUP] for at in range(0, len(whole), GROUP)]
        start = SYSTEM + QUESTION
        whole = [[*group[0], *(token for row in group[1:] for token in row[start:])] for group in groups]
    at_once = 4 if shared else 32
    return [torch.tensor(whole[at : at + at_once]) for at in range(0, len(whole), at_once)]


def write_bytes(tensors: list[Tensor], folder: Path) -> None:
    """Write the tensors' bytes to one file and have them on the disk."""
    with (folder / "floor").open("wb", buffering=0) as file:
        for tensor in tensors:
            file.write(cast(Any, tensor.detach().numpy()).data.cast("B"))
        os.fsync(file.fileno())
    (folder / "floor").unlink()


def timed(work: Work) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(arguments: argparse.Namespace, folder: Path) -> Times:
    """Run everything once to warm up and then `rounds` times, each beside its floor."""
    model = load(arguments.policy)
    trained = rollouts(arguments.rollouts, model.vocab_size)
    prompts = [list(item.transition.prompt_ids) for item in trained][:64]
    updater = Updater(model, UpdateConfig(learning_rate=0.0))
    engine = Engine(model, arguments.threads)
    padded, unique = (update_rows(trained, shared=shared) for shared in (False, True))
    pending: list[PendingCheckpoint] = []
    copy = {name: tensor.clone() for name, tensor in model.weights().items()}
    state = updater.optimizer.state

    def every() -> list[Tensor]:
        return [*model.weights().values(), *(t for own in state.values() for t in own.values() if t.numel() > 1)]

    start, optimizer = SYSTEM + QUESTION, updater.optimizer
    works: dict[str, Work] = {
        "publish": lambda: engine.publish(model),
        "publish: floor, one copy": lambda: [copy[name].copy_(tensor) for name, tensor in model.weights().items()],
        "64 answers": lambda: engine.answer(prompts),
        "64 answers: floor, plain loop": lambda: plain_decode(model, prompts),
        "update": lambda: updater.step(trained),
        "update: floor, as many tokens": lambda: optimizer_step(
            model, optimizer, lambda: plain_update(model, unique, start)
        ),
        "update: plain, padded rows": lambda: optimizer_step(
            model, optimizer, lambda: plain_update(model, padded, start)
        ),
        "checkpoint: until the run goes on": lambda: pending.append(PendingCheckpoint(folder, 1, updater, {}, 1)),
        "checkpoint: until it is on the disk": lambda: pending.pop().write(),
        "checkpoint: floor, its bytes": lambda: write_bytes(every(), folder),
    }
    times: Times = {name: [] for name in works}
    for round_ in range(arguments.rounds + 1):
        for name, work in works.items():
            found = timed(work)
            if round_:
                times[name].append(found)
    engine.close()
    return times


def main() -> None:
    """Measure, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="a Llama's folder; random weights of the same shape if not given")
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="write checkpoints below this folder")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = Path(tempfile.mkdtemp(prefix="benchmark-", dir=arguments.folder))
    try:
        times = measure(arguments, folder)
    finally:
        shutil.rmtree(folder)
    print(f"{arguments.rollouts} rollouts, {arguments.threads} threads, medians of {arguments.rounds}")
    print(f"{'':40}{'seconds':>9}{'CPU s':>9}")
    rows = {
        name: {
            "seconds": statistics.median(wall for wall, _ in own),
            "cpu_seconds": statistics.median(c for _, c in own),
        }
        for name, own in times.items()
    }
    for name, row in rows.items():
        print(f"{name:40}{row['seconds']:9.2f}{row['cpu_seconds']:9.2f}")
    if arguments.json:
        machine = {"platform": platform.platform(), "torch": torch.__version__}
        arguments.json.write_text(json.dumps({"machine": machine, "times": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
