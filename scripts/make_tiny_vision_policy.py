"""Makes a tiny vision-language policy from a seed: a LLaVA small enough to be trained on a CPU in minutes.

It learns the question of the example `examples/colours_lcel` from a teacher who names a wrong colour at a known rate,
which is what reinforcement learning then has to put right. Nothing is downloaded. One thread, so that the same seed
gives the same weights.
"""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import argparse
import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from leyden.core.images.files import decode, read_data_url
from leyden.core.images.processor import ImageProcessor
from leyden.core.testing.tiny_tokenizers import CHATML
from leyden.core.testing.tiny_vision import (
    IMAGE,
    IMAGE_TOKENS,
    TEMPLATE,
    save_vision_processor,
    tiny_vision_model,
)

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "colours_lcel"
SYSTEM, QUESTION = "Name the colour of the picture in one word.", "Which colour is this?"
"""What the example's agent says in every call."""
PAD, _, END = CHATML
WIDTH, CONTEXT = 48, 512
STEPS, BATCH, LEARNING_RATE = 800, 16, 3e-3
RIGHT = 0.5
"""How often the teacher names the right colour; each of the wrong ones is equally likely."""
IGNORED = -100


def load_tasks_module() -> ModuleType:
    """The example's `make_tasks.py`, whose pictures are learned from."""
    spec = importlib.util.spec_from_file_location("colours_make_tasks", FOLDER / "make_tasks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build_tokenizer(colours: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the example's sentences, in which every colour is one token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*CHATML, IMAGE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([SYSTEM, QUESTION, "system", "user", "assistant", *colours] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Id of one token of the vocabulary."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def prompt_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Ids of the example's prompt, with the placeholders of its picture."""
    content = [{"type": "text", "text": QUESTION}, {"type": "image"}]
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    return tokenizer.encode(text.replace(IMAGE, IMAGE * IMAGE_TOKENS), add_special_tokens=False)


def teach(model: Any, tokenizer: PreTrainedTokenizerFast, processor: ImageProcessor, seed: int, steps: int) -> float:
    """Minimise cross-entropy on the teacher's answers; return the last loss."""
    tasks, rng = load_tasks_module(), random.Random(seed)
    colours, prompt = list(tasks.COLOURS), prompt_ids(tokenizer)
    end = token_id(tokenizer, END)
    answers = {name: [*tokenizer.encode(name, add_special_tokens=False), end] for name in colours}
    assert all(len(answer) == 2 for answer in answers.values()), "every colour is one token"
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.1)
    loss = torch.zeros(())
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 40, 0.05 + (steps - step) / steps)
        drawn = [tasks.draw(rng) for _ in range(BATCH)]
        said = [
            name if rng.random() < RIGHT else rng.choice([other for other in colours if other != name])
            for name, _ in drawn
        ]
        pixels = np.stack([processor.prepared(decode(read_data_url(tasks.data_url(shade)))) for _, shade in drawn])
        ids = torch.tensor([prompt + answers[name] for name in said])
        labels = ids.clone()
        labels[:, : len(prompt)] = IGNORED
        loss = model(input_ids=ids, pixel_values=torch.from_numpy(pixels), labels=labels, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    return loss.item()


def make(seed: int, out: Path, steps: int) -> None:
    """Build, teach and save; everything random comes from `seed`."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(list(load_tasks_module().COLOURS))
    tokenizer.save_pretrained(out)
    save_vision_processor(out, tokenizer)
    model = tiny_vision_model(len(tokenizer), token_id(tokenizer, IMAGE), seed, WIDTH, CONTEXT, spread=0.05)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(out)
    loss = teach(model, tokenizer, ImageProcessor(str(out)), seed, steps)
    model.save_pretrained(out)
    print(f"{out}: {model.num_parameters():,} parameters, loss {loss:.3f}")


def main() -> None:
    """Read the options and make one policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("policies/tiny-vision"))
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps, default %(default)s")
    arguments = parser.parse_args()
    make(arguments.seed, arguments.out, arguments.steps)


if __name__ == "__main__":
    main()
