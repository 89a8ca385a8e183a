"""Peak memory of one policy update against the size of the vocabulary, beside one that keeps all logits.

Both do a whole update, forward, backward and optimizer step, with the same loss: `Updater`, and the plain way, which
takes the log-softmax of `module(...).logits`. Each measurement is a process of its own; what is told is how far its
memory rose above what it had before, weights and optimizer included. Needs Linux, which tells the peak.

    python benchmarks/update_memory.py --json update_memory.json
"""

import argparse
import ctypes
import json
import multiprocessing
import platform
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import RolloutShape, TinyShape, synthetic_rollouts, tiny_policy

PROMPT, RESPONSE = 16, 256
MIB = 1 << 20
MMAP_THRESHOLD = -3
"""The parameter of glibc's `mallopt`; a fixed one makes freed tensors leave the process at once."""

Step = Callable[[Sequence[WeightedTransition]], float]
"""One update; returns its loss."""


def leyden_step(model: PolicyModel, lora: LoraOptions | None) -> Step:
    """Return the update under test; all tokens are in one micro-batch, so that no budget bounds what it keeps."""
    updater = Updater(model, UpdateConfig(learning_rate=1e-3, loss="reinforce", lora=lora, token_budget=1 << 30))
    return lambda trained: updater.step(trained).loss


def plain_step(model: PolicyModel, lora: LoraOptions | None) -> Step:
    """Return the same update as it is often written: logits of every token, then the loss."""
    if lora is not None:
        model.adapt(lora)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(trained: Sequence[WeightedTransition]) -> float:
        optimizer.zero_grad(set_to_none=True)
        calls = [item.transition for item in trained]
        ids_BT = torch.tensor([[*call.prompt_ids, *call.response_ids] for call in calls])
        temperature_B = torch.tensor([call.temperature for call in calls])
        advantage_B = torch.tensor([item.advantage for item in trained])
        logits_BTV: Tensor = model.module(input_ids=ids_BT, use_cache=False).logits[:, PROMPT - 1 : -1]
        logprobs_BTV = (logits_BTV / temperature_B[:, None, None]).log_softmax(-1)
        logprobs_BT = logprobs_BTV.gather(2, ids_BT[:, PROMPT:, None])[..., 0]
        loss = -(advantage_B[:, None] * logprobs_BT).mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


WAYS = {"Leyden": leyden_step, "plain": plain_step}


def status(name: str) -> int:
    """Bytes that the kernel tells of this process, as `VmRSS` or, at its peak, `VmHWM`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measured(way: str, vocab: int, tokens: int, lora: bool) -> dict[str, float]:
    """Take one update in this process; return how much memory it took, and its loss."""
    c: Any = ctypes.CDLL(None)
    c.mallopt(MMAP_THRESHOLD, MIB)
    model = tiny_policy(shape=TinyShape(vocab=vocab, context=PROMPT + RESPONSE))
    step = WAYS[way](model, LoraOptions() if lora else None)
    shape = RolloutShape(system=PROMPT - 4, question=4, calls=(RESPONSE,))
    trained = synthetic_rollouts(tokens // RESPONSE, vocab, shape=shape)
    step(synthetic_rollouts(1, vocab, seed=1, shape=RolloutShape(system=PROMPT - 4, question=4, calls=(2,))))
    c.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = status("VmRSS")
    loss = step(trained)
    return {"peak_mib": (status("VmHWM") - before) / MIB, "loss": loss}


def apart(way: str, vocab: int, tokens: int, lora: bool) -> dict[str, float]:
    """The same in a process of its own."""
    context = multiprocessing.get_context("fork")  # torch is loaded once for all
    receiving, sending = context.Pipe(duplex=False)

    def work(to: Connection) -> None:
        to.send(measured(way, vocab, tokens, lora))

    child = context.Process(target=work, args=(sending,))
    child.start()
    sending.close()
    try:
        found: dict[str, float] = receiving.recv()
    except EOFError:
        child.join()
        raise SystemExit(f"{way}, {vocab} x {tokens}: the process ended with code {child.exitcode}") from None
    child.join()
    return found


def measure(vocabularies: list[int], tokens: list[int]) -> list[dict[str, Any]]:
    """One row for each way, kind of weights, vocabulary and number of tokens."""
    return [
        {"way": way, "lora": lora, "vocab": vocab, "tokens": count, **apart(way, vocab, count, lora)}
        for lora in (False, True)
        for way in WAYS
        for vocab in vocabularies
        for count in tokens
    ]


def show(rows: list[dict[str, Any]], tokens: list[int]) -> None:
    """Print a line for each vocabulary and way, a column for each number of tokens."""
    print(f"{'peak MiB at trained tokens':40}" + "".join(f"{count:>9,}" for count in tokens))
    for at in range(0, len(rows), len(tokens)):
        row = rows[at]
        name = f"{row['way']}, {'LoRA' if row['lora'] else 'all weights'}, {row['vocab']:,} tokens known"
        print(f"{name:40}" + "".join(f"{found['peak_mib']:9.0f}" for found in rows[at : at + len(tokens)]))


def main() -> None:
    """Measure, print a table and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[1024, 8192, 65536])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096], help=f"multiples of {RESPONSE}")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    if any(count < RESPONSE or count % RESPONSE for count in arguments.tokens):
        parser.error(f"--tokens takes multiples of {RESPONSE}, the length of a response")
    torch.set_num_threads(1)
    tiny_policy()  # what it imports is loaded once
    rows = measure(arguments.vocabularies, arguments.tokens)
    show(rows, arguments.tokens)
    if arguments.json is not None:
        machine = {"platform": platform.platform(), "torch": torch.__version__}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
