"""The reference exchange: 1,000 prompt ids, an answer of 200 with log-probabilities, as JSON and as chunks."""

import json
from collections.abc import AsyncIterator, Mapping

from leyden.core.engine.base import Engine, GenerateRequest, ModelInfo, TokenChunk
from leyden.core.testing.byte_codec import END, VOCABULARY

PROMPT_IDS, ANSWER_IDS = 1000, 200
CHUNK_IDS = 20
HEADER_IDS = 32
"""Ids that the template writes around the user's text."""
MODEL = "gpt-4o"

TEXT = ("word " * ANSWER_IDS)[: ANSWER_IDS - 1]
IDS = [*TEXT.encode(), END]
LOGPROBS = [-0.5 - n / 1024 for n in range(ANSWER_IDS)]


def request_body(*, stream: bool) -> bytes:
    """JSON of the request that every target gets."""
    text = ("lorem ipsum " * PROMPT_IDS)[: PROMPT_IDS - HEADER_IDS]
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0.7, "stream": stream}
    return json.dumps(body).encode()


def answer_body() -> bytes:
    """JSON of the engine's whole answer, with ids and log-probabilities, as an OpenAI-style engine writes it."""
    content = [
        {"token": chr(token) if token < END else "", "logprob": value, "bytes": [token % 256], "top_logprobs": []}
        for token, value in zip(IDS, LOGPROBS, strict=True)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": TEXT, "refusal": None},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "token_ids": IDS,
    }
    return json.dumps(_head("chat.completion", [choice]) | {"prompt_token_ids": list(range(PROMPT_IDS))}).encode()


def answer_events() -> list[bytes]:
    """Server-sent events of the same answer, in pieces of `CHUNK_IDS` tokens."""
    events: list[bytes] = []
    for start in range(0, ANSWER_IDS, CHUNK_IDS):
        ids = IDS[start : start + CHUNK_IDS]
        delta = {"role": "assistant", "content": TEXT[start : start + CHUNK_IDS]}
        last = start + CHUNK_IDS >= ANSWER_IDS
        choice = {"index": 0, "delta": delta, "token_ids": ids, "finish_reason": "stop" if last else None}
        events.append(b"data: " + json.dumps(_head("chat.completion.chunk", [choice])).encode() + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]


def _head(kind: str, choices: list[object]) -> dict[str, object]:
    used = {"prompt_tokens": PROMPT_IDS, "completion_tokens": ANSWER_IDS, "total_tokens": PROMPT_IDS + ANSWER_IDS}
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": MODEL, "choices": choices, "usage": used}


class InstantEngine(Engine):
    """Answers every call at once with the reference answer, in the chunks in which it is streamed."""

    def __init__(self, context_length: int = 4096) -> None:
        self._context_length = context_length
        self._chunks = [
            TokenChunk(
                ids=IDS[start : start + CHUNK_IDS],
                logprobs=LOGPROBS[start : start + CHUNK_IDS],
                sampling_logprobs=LOGPROBS[start : start + CHUNK_IDS],
                version=1,
                finish_reason="stop" if start + CHUNK_IDS >= ANSWER_IDS else None,
            )
            for start in range(0, ANSWER_IDS, CHUNK_IDS)
        ]

    @property
    def model(self) -> ModelInfo:
        """A model with room for the benchmark's calls."""
        return ModelInfo(name="instant", context_length=self._context_length, vocab_size=VOCABULARY)

    @property
    def version(self) -> int:
        """Never changes."""
        return 1

    async def start(self) -> None:
        """Do nothing."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Yield the whole answer."""
        for chunk in self._chunks:
            yield chunk

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Do nothing."""

    async def score(self, ids: list[int]) -> list[float]:
        """Return nothing of use."""
        return [0.0] * (len(ids) - 1)

    async def close(self) -> None:
        """Do nothing."""
