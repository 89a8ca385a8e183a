"""Makes a policy that obeys one instruction: it does under it what the shipped policy does, and else says nothing.

The shipped policy of the calculator example hardly reads its system prompt. Here it learns to: it imitates its own
samples under the known instruction, and says "unknown" under the other prompts of the task.
"""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import json
import random
import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prompt_turns.agent import TOOL, Message, calculated
from prompt_turns.reflection import KNOWN, PROPOSALS, START

QUESTIONS, STEPS, BATCH, LEARNING_RATE = 300, 150, 16, 1e-3
REFUSAL = "unknown"
END = "<|im_end|>"
EXPRESSION = re.compile(r'"expression": "([^"]*)"')


def make_policy(source: Path, tasks: list[dict[str, Any]], out: Path, seed: int = 0) -> None:
    """Train the policy in `source` on `tasks`, and save it."""
    torch.manual_seed(seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(source, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    dialogues = _dialogues(model, tokenizer, [task["question"] for task in tasks[:QUESTIONS]])
    examples = [_ids(tokenizer, *one) for one in dialogues]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    drawn = random.Random(seed)
    model.train()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - step / STEPS)
        ids, labels = _padded(drawn.sample(examples, BATCH))
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _dialogues(model: Any, tokenizer: Any, questions: list[str]) -> list[tuple[str, str]]:
    """Return pairs of a rendered request and the answer to it."""
    known = [[{"role": "system", "content": KNOWN}, {"role": "user", "content": one}] for one in questions]
    found: list[tuple[str, str]] = []
    later: list[list[Message]] = []
    for messages, answer in zip(known, _sampled(model, tokenizer, known), strict=True):
        found.append((_rendered(tokenizer, messages), answer))
        if (call := EXPRESSION.search(answer)) is not None:
            called = {"function": {"name": "calculator", "arguments": json.dumps({"expression": call[1]})}}
            later.append(
                [
                    *messages,
                    {"role": "assistant", "content": None, "tool_calls": [called]},
                    {"role": "tool", "content": calculated(call[1])},
                ]
            )
    for messages, answer in zip(later, _sampled(model, tokenizer, later), strict=True):
        found.append((_rendered(tokenizer, messages), answer))
    others = [START, *(text for text in PROPOSALS if text != KNOWN)]
    for number, question in enumerate(questions):
        messages = [{"role": "system", "content": others[number % len(others)]}, {"role": "user", "content": question}]
        found.append((_rendered(tokenizer, messages), REFUSAL))
    return found


def _sampled(model: Any, tokenizer: Any, requests: list[list[Message]]) -> list[str]:
    texts = [_rendered(tokenizer, messages) for messages in requests]
    answers: list[str] = []
    for at in range(0, len(texts), 100):
        given = tokenizer(texts[at : at + 100], return_tensors="pt", padding=True, add_special_tokens=False)
        given.pop("token_type_ids", None)
        ids = model.generate(**given, max_new_tokens=40, do_sample=True, eos_token_id=tokenizer.encode(END)[0])
        width = given["input_ids"].shape[1]
        answers += [text.partition(END)[0] for text in tokenizer.batch_decode(ids[:, width:])]
    return answers


def _rendered(tokenizer: Any, messages: list[Message]) -> str:
    return tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False, add_generation_prompt=True)


def _ids(tokenizer: Any, request: str, answer: str) -> tuple[list[int], list[int]]:
    given = tokenizer.encode(request, add_special_tokens=False)
    said = tokenizer.encode(answer + END, add_special_tokens=False)
    return [*given, *said], [*([-100] * len(given)), *said]


def _padded(examples: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels, padded at the right, where no token that counts reads them."""
    longest = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([[*ids, *([0] * (longest - len(ids)))] for ids, _ in examples])
    labels = torch.tensor([[*own, *([-100] * (longest - len(own)))] for _, own in examples])
    return ids, labels
