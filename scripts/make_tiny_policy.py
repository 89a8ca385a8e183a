"""Makes an example's policy from a seed: a Qwen3 model small enough to be trained on a CPU in minutes.

It learns from traces of the unmodified example agent driven by a scripted expert, so that it knows the agent's prompts
and tools, and how to copy. The expert makes wrong decisions at known rates, which reinforcement learning then has to
correct. With one thread, the same seed gives the same weights.
"""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tiny_policy.experts import Expert, calculator, expert_names, load_expert
from tiny_policy.likeness import Likeness
from tiny_policy.text import END_ID, PAD_ID, build_examples, build_tokenizer
from tiny_policy.traces import Trace, record
from tiny_policy.training import Stage, build_model, train

RUN = 200
"""Dialogues that are really run where the others are made in their likeness."""


def scaled(recipe: Sequence[Stage], steps: int | None) -> tuple[Stage, ...]:
    """Return the recipe, its stages shrunk or stretched in proportion to make `steps` in all."""
    if steps is None:
        return tuple(recipe)
    share = steps / sum(stage.steps for stage in recipe)
    return tuple(replace(stage, steps=max(1, round(stage.steps * share))) for stage in recipe)


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


def recorded_traces(expert: Expert, seed: int, agent: str, *, erring: bool) -> list[Trace]:
    """Return traces of the agent; for another agent of the calculator, most are made in the likeness of others."""
    if agent == expert.agent:
        plans = expert.draw(seed, expert.traces, erring=erring)
        return record(plans, agent) if expert.record is None else expert.record(plans)
    confusion = calculator.Confusion() if erring else calculator.NO_CONFUSION
    decisions = calculator.draw_decisions(seed, expert.traces, confusion)
    run = dict(list(decisions.items())[:RUN])
    likeness = Likeness(run, record(calculator.plans_of(run), agent))
    return [likeness.trace(question, decision) for question, decision in decisions.items()]


def make(expert: Expert, seed: int, out: Path, agent: str | None = None, *, erring: bool = True) -> None:
    """Record, train and save; everything random comes from `seed`. `agent` is another agent of the same tasks."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    started = time.perf_counter()
    recorded = recorded_traces(expert, seed, agent or expert.agent, erring=erring)
    tokenizer = build_tokenizer(recorded, expert.vocabulary, expert.words)
    examples = build_examples(tokenizer, recorded)
    print(f"{len(recorded)} traces, {len(tokenizer)} tokens, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    model = build_model(len(tokenizer), expert.shape, seed)
    steps = sum(stage.steps for stage in expert.recipe)
    train(model, examples, expert.recipe, seed, lambda step, loss, seconds: show_progress(step, loss, seconds, steps))
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=END_ID, pad_token_id=PAD_ID)
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {model.num_parameters():,} parameters, {size:,} bytes, {time.perf_counter() - started:.0f} s")


def main() -> None:
    """Read the options and make one policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expert", choices=expert_names(), default="calculator", help="the example, %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agent", help="another agent of the calculator's tasks")
    parser.add_argument("--out", type=Path, help="default: the shipped policy's folder")
    parser.add_argument("--steps", type=int, help="optimizer steps, default: those of the expert's recipe")
    parser.add_argument("--traces", type=int, help="rollouts to learn from, default: the expert's number")
    parser.add_argument("--confusion", choices=("default", "none"), default="default", help="the expert's mistakes")
    arguments = parser.parse_args()
    if arguments.agent is not None and arguments.expert != "calculator":
        parser.error("--agent is for --expert calculator: other experts know the prompts of one agent")
    expert = load_expert(arguments.expert)
    expert = replace(expert, recipe=scaled(expert.recipe, arguments.steps), traces=arguments.traces or expert.traces)
    out = arguments.out or expert.policy
    make(expert, arguments.seed, out, arguments.agent, erring=arguments.confusion == "default")


if __name__ == "__main__":
    main()
