"""`RemoteEngine`: the common base of engines whose policy is served by vLLM in separate processes.

A response is generated in segments (`GenerationSegment`), each by one server with one version. A segment may end before
the response, because of new weights, or a server that died or paused. Its tokens are kept, and the next segment
continues from the prompt and all tokens so far. A call thus survives the loss of a server, and every token's
log-probability is exact.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine, EngineRecord, FinishReason, GenerateRequest, TokenChunk
from leyden.core.engine.generation_segments import GenerationSegment, GenerationSegments
from leyden.core.engine.load_balancer import Load
from leyden.core.engine.record import report
from leyden.core.engine.request_validation import answer_limit, check_request
from leyden.core.engine.vllm.client import GeneratedTokens, ServerUnreachable, VllmClient
from leyden.core.errors import EngineError

T = TypeVar("T")

MIN_TEMPERATURE = 0.01
"""vLLM's minimum temperature; it would raise lower ones without notice."""
SEEDS = 1 << 62


@dataclass(frozen=True, slots=True)
class SegmentServer:
    """Where a segment is generated: a server, the policy's name on it, and the version it serves.

    With `scores_by_step`, prompts are scored position by position: see `VllmClient.score_steps`.
    """

    client: VllmClient
    model: str
    version: int
    scores_by_step: bool = False


@dataclass(slots=True)
class _Answer:
    """One response as far as it was generated."""

    request: GenerateRequest
    limit: int
    ids: list[int] = field(default_factory=list[int])
    losses: int = 0
    """Number of consecutive server losses without a token in between."""

    @property
    def prompt_ids(self) -> list[int]:
        return self.request.prompt_ids + self.ids

    @property
    def left(self) -> int:
        return self.limit - len(self.ids)

    @property
    def end(self) -> FinishReason | None:
        """The reason why the tokens so far end the response; None if they do not."""
        if self.ids and self.ids[-1] in (*self.request.stop_ids, *self.request.sampling.stop_ids):
            return "stop"
        return None if self.left else "length"

    def segment_request(self) -> GenerateRequest:
        """Return the request for the next segment; the seed changes, because the same one would repeat its numbers."""
        sampling = self.request.sampling
        if sampling.temperature == 0:
            sampling = msgspec.structs.replace(sampling, top_p=1.0, top_k=0, min_p=0.0)
        seed = None if sampling.seed is None else (sampling.seed + len(self.ids) * 0x9E3779B97F4A7C15) % SEEDS
        sampling = msgspec.structs.replace(sampling, seed=seed)
        top = self.request.top_logprobs if _samples_raw(sampling) else 0  # raw ones are requested at the end
        return msgspec.structs.replace(self.request, sampling=sampling, top_logprobs=top)


class RemoteEngine(Engine):
    """Generates responses on the servers that a subclass chooses.

    `on_finish` is called on the caller's event loop with the record of each call when it ends.
    """

    def __init__(self, *, on_finish: Callable[[EngineRecord], None] | None = None) -> None:
        self._on_finish = on_finish
        self._segments = GenerationSegments()
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Number of calls that are being answered or wait."""
        return self._in_flight

    @abstractmethod
    async def _choose_server(self, rollout_id: str | None) -> SegmentServer:
        """Return the server for a call of this rollout; may wait. Raises EngineError if there will be none."""

    @abstractmethod
    async def _handle_loss(self, server: SegmentServer, error: ServerUnreachable, losses: int) -> None:
        """Handle the `losses`-th consecutive loss of `server`; raises EngineError if the call cannot continue."""

    def _load(self, server: SegmentServer, tokens: int) -> Load:
        """Return the load of a segment, which grows by its tokens; an engine with one server does not compare loads."""
        return Load(Counter(), server.client.url, tokens)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Yield the response while it is generated; see `Engine.generate`.

        If the temperature is neither 0 nor 1, or the distribution is truncated, all tokens of a segment arrive at its
        end: their log-probabilities at temperature 1 are known only then, and contain neither grammar nor penalties.
        With a grammar, a penalty or a bias, the whole response arrives at its end.

        Raises EngineError for a temperature above 0 that is below `MIN_TEMPERATURE`.
        """
        self._check_ready()
        check_request(request, self.model)
        if 0 < request.sampling.temperature < MIN_TEMPERATURE:
            raise EngineError(f"vLLM samples at temperatures of at least {MIN_TEMPERATURE}; temperature 0 is greedy")
        answer = _Answer(request, answer_limit(request, self.model))
        delivered: list[TokenChunk] = []
        self._in_flight += 1
        try:
            async with aclosing(self._generate_chunks(answer)) as chunks:
                async for chunk in chunks:
                    delivered.append(chunk)
                    if chunk.finish_reason is not None:
                        report(self._on_finish, request, delivered, self.version)
                    yield chunk
        finally:
            self._in_flight -= 1
            if not delivered or delivered[-1].finish_reason is None:
                report(self._on_finish, request, delivered, self.version)

    async def score(self, ids: list[int]) -> list[float]:
        """Return the raw log-probability of each of `ids[1:]`, the last one computed as for responses.

        The last one uses the server's prefix cache, if there is one, so that a cache of old weights becomes visible.
        The others are computed again, unless the server serves adapters: then all are computed as for responses. Raises
        EngineError if the ids do not fit the context or the vocabulary, or if the engine is closed.
        """
        self._check_ready()
        if not 0 < len(ids) <= self.model.context_length:
            raise EngineError(f"cannot score {len(ids)} tokens with a context of {self.model.context_length}")
        if not 0 <= min(ids) <= max(ids) < self.model.vocab_size:
            raise EngineError(
                f"cannot score ids outside the vocabulary of {self.model.name}, which has {self.model.vocab_size} "
                "tokens"
            )
        if len(ids) == 1:
            return []

        async def send(server: SegmentServer) -> list[float]:
            if server.scores_by_step:
                return (await server.client.score_steps(server.model, ids, 1)).logprobs
            last = await server.client.next_log_prob(server.model, ids[:-1], ids[-1])
            return [*(await server.client.score(server.model, ids)).logprobs[:-1], last]

        return await self._retry_until_answered(send)

    async def _retry_until_answered(self, send: Callable[[SegmentServer], Awaitable[T]]) -> T:
        """Repeat a request until a server has answered it."""
        losses = 0
        while True:
            await self._segments.wait_open()
            self._check_ready()
            server = await self._choose_server(None)
            try:
                return await send(server)
            except ServerUnreachable as error:
                losses += 1
                await self._handle_loss(server, error, losses)

    def _check_ready(self) -> None:
        if self._segments.closed:
            raise EngineError("the engine is closed")

    async def _generate_chunks(self, answer: _Answer) -> AsyncGenerator[TokenChunk]:
        while True:
            await self._segments.wait_open()
            server = None if self._segments.closed else await self._next_server(answer)
            if server is None:
                yield _chunk(answer, GeneratedTokens(ids=[], logprobs=[], top=[]), self.version, "abort")
                return
            if self._segments.changing:
                continue  # weights changed while the server was chosen
            try:
                with self._load(server, len(answer.request.prompt_ids) + len(answer.ids)) as load:
                    async with aclosing(self._generate_segment(server, answer)) as chunks:
                        async for chunk in chunks:
                            answer.losses = 0
                            load.add(len(chunk.ids))
                            yield chunk
                            if chunk.finish_reason is not None:
                                return
            except ServerUnreachable as error:
                if not self._segments.closed:
                    answer.losses += 1
                    await self._handle_loss(server, error, answer.losses)

    async def _next_server(self, answer: _Answer) -> SegmentServer | None:
        """Return the server on which the response continues; None if the engine was closed in the meantime."""
        try:
            return await self._choose_server(answer.request.rollout_id)
        except EngineError:
            if self._segments.closed:
                return None
            raise

    async def _generate_segment(self, server: SegmentServer, answer: _Answer) -> AsyncGenerator[TokenChunk]:
        """Generate until the response ends or the segment is interrupted."""
        if answer.end is not None:  # the last segment was complete when its server was lost
            yield _chunk(answer, GeneratedTokens(ids=[], logprobs=[], top=[]), server.version, answer.end)
            return
        if answer.request.sampling.adjusts_logits:
            async for chunk in self._generate_whole(server, answer):
                yield chunk
            return
        segment_request, prompt_ids, top = answer.segment_request(), answer.prompt_ids, answer.request.top_logprobs

        async def settle(held: list[GeneratedTokens]) -> GeneratedTokens:
            return await _with_raw(server, prompt_ids, _joined(held), top)

        source = server.client.generate(server.model, segment_request, prompt_ids, answer.left)
        segment = GenerationSegment(
            self._segments, server.client, source, None if _samples_raw(segment_request.sampling) else settle
        )
        try:
            while found := await segment.take():
                generated = _joined(found)
                answer.ids += generated.ids
                finish = _finish_reason(server, generated, answer)
                if generated.ids or finish:
                    yield _chunk(answer, generated, server.version, finish)
        finally:
            await segment.close()

    async def _generate_whole(self, server: SegmentServer, answer: _Answer) -> AsyncGenerator[TokenChunk]:
        """Generate a response whose grammar or penalties a server could not continue; yield it when it is complete.

        A server counts a prompt's tokens neither for a grammar nor for two of the penalties. An interrupted response is
        therefore discarded, and generated again from its beginning.
        """
        request, top = answer.segment_request(), answer.request.top_logprobs

        async def settle(held: list[GeneratedTokens]) -> GeneratedTokens:
            return await _with_raw(server, request.prompt_ids, _joined(held), top)

        source = server.client.generate(server.model, request, request.prompt_ids, answer.limit)
        segment = GenerationSegment(
            self._segments, server.client, source, None if _samples_raw(request.sampling) else settle
        )
        held: list[GeneratedTokens] = []
        try:
            while found := await segment.take():
                held += found
        finally:
            await segment.close()
        if held and held[-1].finish_reason in ("stop", "length"):
            generated = _joined(held)
            answer.ids += generated.ids
            yield _chunk(answer, generated, server.version, _finish_reason(server, generated, answer))


def _samples_raw(sampling: Sampling) -> bool:
    """Return whether the sampling log-probabilities are those at temperature 1, with nothing truncated."""
    return sampling.temperature == 0 or (sampling.temperature == 1 and not sampling.truncates)


def _joined(parts: list[GeneratedTokens]) -> GeneratedTokens:
    return GeneratedTokens(
        ids=[token for part in parts for token in part.ids],
        logprobs=[value for part in parts for value in part.logprobs],
        raw=None if parts[0].raw is None else [value for part in parts for value in part.raw or ()],
        top=[position for part in parts for position in part.top],
        finish_reason=parts[-1].finish_reason,
    )


async def _with_raw(
    server: SegmentServer, prompt_ids: list[int], generated: GeneratedTokens, top: int
) -> GeneratedTokens:
    """Add raw log-probabilities to tokens that were sampled from another distribution."""
    if not generated.ids:
        return generated
    ids, last = prompt_ids + generated.ids, -len(generated.ids)
    if server.scores_by_step:
        scored = await server.client.score_steps(server.model, ids, len(prompt_ids), top)
    else:
        scored = await server.client.score(server.model, ids, top)
    return msgspec.structs.replace(generated, raw=scored.logprobs[last:], top=scored.top[last:])


def _finish_reason(server: SegmentServer, generated: GeneratedTokens, answer: _Answer) -> FinishReason | None:
    """Return why the response ended, or None; after an abort by the server, the next segment continues."""
    if generated.finish_reason not in ("stop", "length"):
        return None
    if answer.end is None:
        raise EngineError(
            f"{server.client.url} ended an answer after {len(answer.ids)} tokens without a stop token or a limit"
        )
    return answer.end


def _chunk(answer: _Answer, generated: GeneratedTokens, version: int, finish: FinishReason | None) -> TokenChunk:
    return TokenChunk(
        ids=generated.ids,
        logprobs=generated.logprobs if generated.raw is None else generated.raw,
        sampling_logprobs=generated.logprobs,
        version=version,
        top=generated.top if answer.request.top_logprobs else None,
        finish_reason=finish,
    )
