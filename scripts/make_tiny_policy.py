"""Makes an example's policy from a seed: a Qwen3 model small enough to be trained on a CPU in minutes.

It learns from traces of the unmodified example agent driven by a scripted expert, so that it knows the agent's prompts,
its tool and how to copy numbers. The expert chooses the wrong operation or skips the tool at known rates, which is
what reinforcement learning then has to put right. One thread, so that the same seed gives the same weights.
"""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tiny_policy import example
from tiny_policy.likeness import Likeness
from tiny_policy.text import END_ID, PAD_ID, build_examples, build_tokenizer
from tiny_policy.traces import NO_CONFUSION, Confusion, Decision, Trace, draw_decisions, record
from tiny_policy.training import RECIPE, Shape, Stage, build_model, train

TRACES = 12000
RUN = 200
"""Dialogues that are really run where the others are made in their likeness."""


def scaled(steps: int | None) -> tuple[Stage, ...]:
    """The recipe, its stages shrunk or stretched in proportion to make `steps` in all."""
    if steps is None:
        return RECIPE
    share = steps / sum(stage.steps for stage in RECIPE)
    return tuple(replace(stage, steps=max(1, round(stage.steps * share))) for stage in RECIPE)


def show_progress(step: int, loss: float, seconds: float, steps: int) -> None:
    """Rewrite the progress line, or print one line per tenth where there is no terminal."""
    line = f"step {step}/{steps}  loss {loss:.3f}  {seconds:.0f} s, {seconds / step * (steps - step):.0f} s left"
    if sys.stderr.isatty():
        print(f"\r{line}   ", end="\n" if step == steps else "", file=sys.stderr, flush=True)
    elif step % max(1, steps // 10) == 0:
        print(line, file=sys.stderr, flush=True)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Save under the class name that every transformers release knows; the newest writes one of its own."""
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def recorded_traces(decisions: dict[str, Decision], agent: str) -> list[Trace]:
    """Run the shipped example's agent on every question; another one on some, the others in their likeness."""
    if agent == example.AGENT:
        return record(decisions)
    run = dict(list(decisions.items())[:RUN])
    likeness = Likeness(run, record(run, agent))
    return [likeness.trace(question, decision) for question, decision in decisions.items()]


def make(
    seed: int, out: Path, confusion: Confusion, recipe: tuple[Stage, ...], traces: int, agent: str = example.AGENT
) -> None:
    """Record, train and save; everything random comes from `seed`."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    started = time.perf_counter()
    recorded = recorded_traces(draw_decisions(seed, traces, confusion), agent)
    tokenizer = build_tokenizer(recorded)
    examples = build_examples(tokenizer, recorded)
    print(f"{len(recorded)} traces, {len(tokenizer)} tokens, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    model = build_model(len(tokenizer), Shape(), seed)
    steps = sum(stage.steps for stage in recipe)
    train(model, examples, recipe, seed, lambda step, loss, seconds: show_progress(step, loss, seconds, steps))
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=END_ID, pad_token_id=PAD_ID)
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {model.num_parameters():,} parameters, {size:,} bytes, {time.perf_counter() - started:.0f} s")


def main() -> None:
    """Read the options and make one policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agent", default=example.AGENT, help="an agent with the same task, default %(default)s")
    parser.add_argument("--out", type=Path, default=example.FOLDER / "policy")
    parser.add_argument("--steps", type=int, help=f"optimizer steps, default {sum(stage.steps for stage in RECIPE)}")
    parser.add_argument("--traces", type=int, default=TRACES, help="dialogues to learn from, default %(default)s")
    parser.add_argument("--confusion", choices=("default", "none"), default="default", help="the expert's mistakes")
    arguments = parser.parse_args()
    confusion = NO_CONFUSION if arguments.confusion == "none" else Confusion()
    make(arguments.seed, arguments.out, confusion, scaled(arguments.steps), arguments.traces, arguments.agent)


if __name__ == "__main__":
    main()
