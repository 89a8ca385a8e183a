"""Tokens per second of structured output, as a share of free text's, in the embedded engine.

Free text and JSON take turns in one run, with the same prompts and numbers of tokens. The JSON fits a schema with an
array of records, so that every token is sampled under the grammar's mask. A floor: the same step without any sampling.

    python benchmarks/structured.py POLICY --rows 8 32 --json structured.json
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.engine.embedded.weights import load_model
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.grammar.rules import AnswerFormat

RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "number": {"type": "integer", "minimum": 0, "maximum": 9999},
        "kind": {"enum": ["sum", "difference", "product"]},
        "why": {"type": "string", "maxLength": 40},
    },
    "required": ["number", "kind", "why"],
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 100}
"""More records than an answer has room for, so that an answer ends only at its number of tokens."""


class Bench:
    """The engine with one policy, and prompts for it."""

    def __init__(self, source: str, tokens: int) -> None:
        self._codec = HuggingFaceCodec(source)
        self._tokens = tokens
        self._engine = EmbeddedEngine(load_model(source, "cpu"), name="policy", tokenizer=source)
        self._seeds = 0

    async def start(self) -> None:
        """Start the engine."""
        await self._engine.start()

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()

    async def rate(self, rows: int, grammar: str) -> float:
        """Return tokens per second of `rows` answers at once."""
        began = time.perf_counter()
        counts = await asyncio.gather(*(self._answer(row, grammar) for row in range(rows)))
        return sum(counts) / (time.perf_counter() - began)

    async def _answer(self, row: int, grammar: str) -> int:
        self._seeds += 1
        question = [{"role": "user", "content": f"What is {row} + {3 * row + 1}? Explain each step."}]
        request = GenerateRequest(
            request_id=str(self._seeds),
            prompt_ids=self._codec.encode(question),
            sampling=Sampling(max_tokens=self._tokens, grammar=grammar, seed=self._seeds),
        )
        counted = 0
        async for chunk in self._engine.generate(request):
            counted += len(chunk.ids)
        return counted


async def measure(source: str, rows: list[int], rounds: int, tokens: int) -> dict[str, dict[str, float]]:
    """Return for each number of rows the median rates of free text and of JSON, and their ratio in the same round."""
    bench = Bench(source, tokens)
    grammar = AnswerFormat(kind="json", text=json.dumps(SCHEMA)).grammar()
    await bench.start()
    found: dict[str, dict[str, float]] = {}
    try:
        for count in rows:
            for text in ("", grammar):
                await bench.rate(count, text)
            pairs = [(await bench.rate(count, ""), await bench.rate(count, grammar)) for _ in range(rounds)]
            found[str(count)] = {
                "free": statistics.median(free for free, _ in pairs),
                "json": statistics.median(limited for _, limited in pairs),
                "ratio": statistics.median(limited / free for free, limited in pairs),
            }
            print(count, found[str(count)])
    finally:
        await bench.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = asyncio.run(measure(options.policy, options.rows, options.rounds, options.tokens))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
