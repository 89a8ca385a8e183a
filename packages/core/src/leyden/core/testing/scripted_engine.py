"""`ScriptedEngine`: an engine that answers from a script, for tests of its clients. Loads no model and no torch."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine, EngineRecord, FinishReason, GenerateRequest, ModelInfo, TokenChunk
from leyden.core.engine.record import record_of
from leyden.core.engine.request_validation import answer_limit, check_request
from leyden.core.errors import EngineError


class ScriptedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request."""

    ids: list[int]
    delay: float = 0.0
    """Seconds before the first chunk."""
    chunk_size: int | None = None
    """Tokens per chunk; None for a single chunk."""
    chunk_delay: float = 0.0
    """Seconds before every further chunk."""
    finish_reason: FinishReason | None = None
    """None: "stop", or "length" where max_tokens or the context length cut the script off."""
    held: bool = False
    """Whether the last chunk waits until the engine is closed, so that the caller must abort the call."""
    step: asyncio.Semaphore | None = None
    """Semaphore that is acquired before each chunk, so that a caller decides when the next chunk comes."""
    error: Exception | None = None
    """Error that is raised after `ids` were delivered, in place of the last chunk."""


Scripted: TypeAlias = ScriptedAnswer | list[int] | Exception
Script: TypeAlias = Callable[[GenerateRequest], Scripted] | Sequence[Scripted]
"""A function of the request, or answers in the order in which the calls arrive."""


def scripted_log_prob(previous: int, token: int) -> float:
    """Return an artificial log-probability of `token` after `previous`.

    It is a multiple of 1/64 in [-4, 0), exact in float32.
    """
    return -(1 + (31 * previous + 17 * token) % 256) / 64


def scripted_sampling_log_prob(log_prob: float, sampling: Sampling) -> float:
    """Return `log_prob` divided by the temperature, which distinguishes the sampling distribution from the raw one."""
    return log_prob if sampling.temperature in (0, 1) else log_prob / sampling.temperature


def scripted_top(previous: int, count: int, vocab_size: int) -> list[tuple[int, float]]:
    """Return the `count` likeliest ids below 256 after `previous`, each with its `scripted_log_prob`."""
    pairs = [(token, scripted_log_prob(previous, token)) for token in range(min(256, vocab_size))]
    return sorted(pairs, key=lambda pair: -pair[1])[:count]


class ScriptedEngine(Engine):
    """Answers from a script, one chunk at a time, with regard to stop ids, max_tokens and the context length.

    Log-probabilities are `scripted_log_prob` of consecutive ids, so that a test can recompute them and `score` agrees.
    The likeliest ids are those of `scripted_top`.
    """

    def __init__(self, answers: Script, *, model: ModelInfo | None = None, version: int = 0) -> None:
        self._model = model or ModelInfo(name="scripted", context_length=4096, vocab_size=1 << 17)
        self._version = version
        self._answers = answers
        self._closed = asyncio.Event()
        self.log: list[EngineRecord] = []
        """Every call in the order in which it ended, with the delivered ids; "abort" if it was aborted or failed."""
        self.requests: list[GenerateRequest] = []
        """Every accepted request in the order of arrival."""
        self.versions: list[int] = []
        """Version of every weight update."""
        self.in_flight = 0
        self.peak = 0
        """Largest number of calls in progress at once."""

    @property
    def model(self) -> ModelInfo:
        """The model that the engine claims to serve."""
        return self._model

    @property
    def version(self) -> int:
        """Version of the last update."""
        return self._version

    async def start(self) -> None:
        """Do nothing."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Yield the scripted answer; raises the script's errors, and EngineError for an invalid request."""
        self._check_open()
        check_request(request, self._model)
        self.requests.append(request)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        delivered: list[TokenChunk] = []
        try:
            answer = self._answer(request)
            for ids, finish_reason, delay in _plan(answer, request, answer_limit(request, self._model)):
                await self._pause(delay)
                if answer.step is not None:
                    await answer.step.acquire()
                if answer.held and finish_reason is not None:
                    await self._closed.wait()
                closed = self._closed.is_set()
                chunk = self._chunk(request, delivered, [] if closed else ids, "abort" if closed else finish_reason)
                delivered.append(chunk)
                yield chunk
                if closed:
                    return
            if answer.error is not None:
                raise answer.error
        finally:
            self.in_flight -= 1
            self.log.append(record_of(request, delivered, self._version))

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Record `version`; the weights are ignored."""
        self._version = version
        self.versions.append(version)

    async def score(self, ids: list[int]) -> list[float]:
        """Return `scripted_log_prob` of each of `ids[1:]`."""
        self._check_open()
        return [scripted_log_prob(a, b) for a, b in pairwise(ids)]

    async def close(self) -> None:
        """End the calls in progress with finish reason "abort"."""
        self._closed.set()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise EngineError("the engine is closed")

    def _answer(self, request: GenerateRequest) -> ScriptedAnswer:
        call = len(self.requests)
        if callable(self._answers):
            answer = self._answers(request)
        elif call <= len(self._answers):
            answer = self._answers[call - 1]
        else:
            raise EngineError(f"the script has {len(self._answers)} answers, and this is call {call}")
        if isinstance(answer, Exception):
            raise answer
        return ScriptedAnswer(ids=answer) if isinstance(answer, list) else answer

    async def _pause(self, seconds: float) -> None:
        """Sleep until `seconds` have passed or the engine is closed; other tasks always run in between."""
        try:
            await asyncio.wait_for(self._closed.wait(), seconds)
        except TimeoutError:
            await asyncio.sleep(0)

    def _chunk(
        self, request: GenerateRequest, before: list[TokenChunk], ids: list[int], finish_reason: FinishReason | None
    ) -> TokenChunk:
        previous = [*request.prompt_ids[-1:], *(i for chunk in before for i in chunk.ids)][-1:] + ids
        steps = list(zip(previous, ids, strict=False))
        logprobs = [scripted_log_prob(a, b) for a, b in steps]
        wanted = request.top_logprobs
        return TokenChunk(
            ids=ids,
            logprobs=logprobs,
            sampling_logprobs=[scripted_sampling_log_prob(value, request.sampling) for value in logprobs],
            version=self._version,
            finish_reason=finish_reason,
            top=[scripted_top(a, wanted, self._model.vocab_size) for a, _ in steps] if wanted else None,
        )


def _plan(
    answer: ScriptedAnswer, request: GenerateRequest, limit: int
) -> list[tuple[list[int], FinishReason | None, float]]:
    """Return the chunks of `answer`: ids, finish reason, seconds to wait before."""
    ids, finish_reason = answer.ids[:limit], answer.finish_reason or "stop"
    stop = next((n for n, token in enumerate(ids) if token in request.stop_ids), None)
    if stop is not None:
        ids, finish_reason = ids[: stop + 1], "stop"
    elif len(ids) < len(answer.ids) or (len(ids) == limit and answer.finish_reason is None):
        finish_reason = "length"
    size = answer.chunk_size or max(len(ids), 1)
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)] or [[]]
    last = None if answer.error is not None else finish_reason
    return [
        (chunk, last if n == len(chunks) - 1 else None, answer.chunk_delay if n else answer.delay)
        for n, chunk in enumerate(chunks)
    ]
