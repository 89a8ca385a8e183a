"""How well a policy folder does on tasks: the unmodified agent, its model calls answered in this process by the policy.

For looking at a policy while it is being made; `leyden train` has an evaluation of its own.
"""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tiny_policy import example, wire
from tiny_policy.text import END

LONGEST_ANSWER = 40
STEP_LIMIT = 8


@dataclass(frozen=True)
class Outcome:
    """One run of the agent: its reward, and what the model said, call by call."""

    question: str
    reward: float
    said: tuple[str, ...]


class Evaluator:
    """Runs tasks many at a time; requests that wait together are decoded together."""

    def __init__(self, folder: Path, temperature: float) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert isinstance(tokenizer, PreTrainedTokenizerFast)
        tokenizer.padding_side = "left"
        self._tokenizer = tokenizer
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._temperature = temperature
        self._waiting: list[tuple[str, asyncio.Future[str]]] = []
        self._said: dict[str, list[str]] = {}

    async def run(self, tasks: Sequence[dict[str, Any]]) -> list[Outcome]:
        """Every task once; an agent that fails has reward 0."""
        self._said = {task["question"]: [] for task in tasks}
        with wire.answered_by(self._answer):
            return await asyncio.gather(*(self._one(task) for task in tasks))

    async def _one(self, task: dict[str, Any]) -> Outcome:
        inputs = {"messages": [("user", task["question"])]}
        try:
            result = await example.load("agent").agent.ainvoke(inputs, {"recursion_limit": STEP_LIMIT})
            reward: float = example.load("reward").score(task, result)
        except Exception:  # whatever a policy makes the agent do, it is a failure of that one run
            reward = 0.0
        return Outcome(task["question"], reward, tuple(self._said[task["question"]]))

    async def _answer(self, body: dict[str, Any]) -> wire.Message:
        prompt = self._tokenizer.apply_chat_template(
            body["messages"], tools=body["tools"], add_generation_prompt=True, tokenize=False
        )
        assert isinstance(prompt, str)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            asyncio.get_running_loop().call_later(0.2, self._decode)
        self._waiting.append((prompt, future))
        text = await future
        question = next(message["content"] for message in body["messages"] if message["role"] == "user")
        self._said[question].append(text)
        return wire.message_from(text)

    def _decode(self) -> None:
        batch, self._waiting = self._waiting, []
        inputs = self._tokenizer([prompt for prompt, _ in batch], return_tensors="pt", padding=True)
        sampling = {"do_sample": True, "temperature": self._temperature} if self._temperature else {"do_sample": False}
        with torch.inference_mode():
            output = self._model.generate(**inputs, **sampling, top_k=0, max_new_tokens=LONGEST_ANSWER)
        for (_, future), ids in zip(batch, output[:, inputs["input_ids"].shape[1] :], strict=True):
            future.set_result(str(self._tokenizer.decode(ids)).split(END)[0])
