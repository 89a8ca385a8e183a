"""Call service: answers one model call in any dialect; it encodes the prompt, samples tokens, replies and records."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import msgspec
from starlette.types import Send

from leyden.core.data import reasons
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import FinishReason, GenerateRequest, TokenChunk
from leyden.core.errors import EngineError, GrammarError, UnusableGrammar
from leyden.core.gateway.answer_format import check_format
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.images import with_digests, without_data
from leyden.core.gateway.calls.prompts import read_prompts, recorded_messages, score_prompt
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.retry_cache import RetryCache, fingerprint, replay
from leyden.core.gateway.calls.seeds import CallSeeds
from leyden.core.gateway.calls.served_policy import ServedPolicy, sampling_for, warn_of_untrainable
from leyden.core.gateway.chat.format import answer_message
from leyden.core.gateway.codecs.answer_reader import AnswerReader, ReadPart, ReadToken
from leyden.core.gateway.dialect import Dialect, EncodedPrompt, Exchange, FinishedChoice, Reply
from leyden.core.gateway.http.asgi import ClientGone, ClientWatch
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.limits.prompt_size import MAX_UNCHECKED_BYTES, check_elements, least_of_body, may_have_images
from leyden.core.gateway.message_images import image_urls
from leyden.core.gateway.model_request import ModelRequest, with_known_ids
from leyden.core.gateway.prompts.request import edit_call
from leyden.core.gateway.refusal import Refusal, invalid, server_error

_log = logging.getLogger("leyden.gateway")
BROKEN_OFF = "the engine aborted the call"
PACE_SECONDS = 0.001


_Unsent: TypeAlias = tuple[list[ReadPart], list[ReadToken] | None]


@dataclass(slots=True)
class _Choice:
    """One choice of a response while it is generated."""

    record: CallRecord
    reader: AnswerReader
    request: ModelRequest
    reply: Reply
    unsent: list[_Unsent] = field(default_factory=list[_Unsent])
    """Content of a streamed response that is not sent yet, with its tokens if the agent requested them."""
    unread: list[TokenChunk] = field(default_factory=list[TokenChunk])
    """Chunks that are recorded, and not parsed yet."""
    read_along: bool = field(init=False)
    """Whether the tokens are parsed while they are sampled, and not all at the end."""

    def __post_init__(self) -> None:
        self.read_along = self.reply.live or self.reader.may_stop_early

    @property
    def has_ended(self) -> bool:
        """Whether the whole choice was generated and parsed."""
        return self.record.finish_reason is not None

    def take(self, chunk: TokenChunk) -> None:
        """Record a chunk of tokens as soon as the engine has delivered it: the call may be cancelled at any time."""
        self.record.take(chunk)
        if self.read_along:
            self.unread.append(chunk)

    def read(self, chunk: TokenChunk) -> FinishReason | None:
        """Parse `chunk`, which was taken last, if tokens are parsed as they arrive.

        Return the finish reason if the engine or the reader ends the choice with this chunk. For any reason except
        `abort`, the choice is then complete.
        """
        if self.read_along:
            self.unread.pop()
            parts = self.reader.push(chunk.ids, chunk.logprobs, chunk.top)
            if self.reply.live:
                self.unsent.append((parts, self.reader.tokens()))
        finish = "stop" if self.reader.stopped else chunk.finish_reason
        if finish is not None and finish != "abort":
            parts = self._read_rest()
            if self.reply.live:
                self.unsent.append((parts, self.reader.tokens()))
            self.record.engine_finish = finish
            self.record.finish_reason = self.finished().finish(self.request)
            self._note_output()
        return finish

    def send(self) -> Awaitable[None]:
        """Send the new content that can no longer change; a plain response is sent at its end."""
        unsent, self.unsent = self.unsent, []
        if len(unsent) == 1:
            return self.reply.show(self.record.choice, *unsent[0])
        return self._send_all(unsent)

    async def _send_all(self, unsent: list[_Unsent]) -> None:
        for parts, tokens in unsent:
            await self.reply.show(self.record.choice, parts, tokens)

    def cut(self, reason: str) -> None:
        """Record the partial response, with `reason` for not training on it."""
        if not self.has_ended:
            self._read_rest()
            self._note_output()
        self.record.not_trained = reason

    def finished(self) -> FinishedChoice:
        """Return the choice in the form that a `Reply` takes."""
        finish = self.record.engine_finish or "abort"
        return FinishedChoice(
            reader=self.reader,
            engine_finish=finish,
            prompt_ids=self.record.prompt_ids or (),
            response_ids=self.record.ids,
        )

    def _read_rest(self) -> list[ReadPart]:
        record = self.record
        if not self.read_along:
            return [*self.reader.push(record.ids, record.logprobs, record.top or None), *self.reader.finish()]
        unread, self.unread = self.unread, []
        parts = [part for chunk in unread for part in self.reader.push(chunk.ids, chunk.logprobs, chunk.top)]
        return [*parts, *self.reader.finish()]

    def _note_output(self) -> None:
        message = answer_message(self.reader.content, self.reader.calls, self.reader.reasoning)
        self.record.output = msgspec.json.encode([message]).decode()


async def serve_call(
    policy: ServedPolicy,
    dialect: Dialect,
    origin: Origin,
    body: bytes,
    retry_cache: RetryCache,
    watch: ClientWatch,
    send: Send,
    work: RequestWork,
) -> None:
    """Answer a call, and record it before the last byte of the response is sent.

    A retry gets the recorded response of the original call. Raises Refusal if nothing has been sent yet. If a stream
    fails later, its client gets the error as an event of the stream.
    """
    with watch.cancelling():
        mark = await work.run(len(body), lambda: fingerprint(origin, body))
        earlier = await retry_cache.find_answer(origin, mark)
        exchange = await dialect.parse(body, origin, work) if earlier else None
    if exchange is not None:
        work.free()
        await replay(policy, exchange, earlier, send)
        return
    response_id = f"{dialect.id_prefix}{os.urandom(14).hex()}"
    record = CallRecord(
        origin=origin,
        call_id=response_id,
        response_id=response_id,
        dialect=dialect.name,
        fingerprint=mark,
        policy=policy.name,
        not_trained=None if policy.trained else reasons.FROZEN,
    )
    # The request is in progress also while its prompt is encoded, which may take long.
    with retry_cache.in_progress(mark, watch, is_retry=origin.is_retry):
        try:
            with watch.cancelling():
                exchange = await read_request(policy, dialect, origin, body, work)
                request = exchange.request
                if origin.edits is not None:
                    request, record.replaced = await edit_call(origin.edits, request, len(body), work)
                prompts = await _accept(policy, dialect, record, request, work)
        except Refusal as refusal:
            record.fail(reasons.REFUSED, str(refusal), refusal.body.code or refusal.body.type)
            await retry_cache.keep(record)
            raise
        work.free()
        await _answer(policy, dialect, exchange, record, prompts, retry_cache, watch, send)


async def _answer(
    policy: ServedPolicy,
    dialect: Dialect,
    exchange: Exchange,
    record: CallRecord,
    prompts: Sequence[EncodedPrompt],
    retry_cache: RetryCache,
    watch: ClientWatch,
    send: Send,
) -> None:
    reply = exchange.reply(send, record.response_id, int(record.started), prompts)
    choices = [
        _Choice(
            one,
            AnswerReader(policy.codec, exchange.request, one.call_id, one.prompt_ids or ()),
            exchange.request,
            reply,
        )
        for one in _records(policy, dialect, record, prompts, exchange.request)
    ]
    records = [choice.record for choice in choices]
    failure = await _generate(policy, choices, prompts, retry_cache, watch)
    finished = [choice.finished() for choice in choices]
    for one in records:
        if one.kept:
            await one.pack_kept()
    whole = all(one.finish_reason for one in records)
    if failure is None and whole:
        records[0].extra = exchange.attributes(record.response_id, int(record.started), finished)
    if not await retry_cache.keep(*records, waits=not watch.gone):
        failure = failure or server_error("The call could not be recorded.")
    if failure is not None:
        await reply.fail(failure)
    elif not watch.gone:
        await reply.end(finished, sum(len(prompt.ids) for prompt in prompts))
    elif whole and record.fingerprint:
        retry_cache.mark_undelivered(record.fingerprint)


async def _accept(
    policy: ServedPolicy, dialect: Dialect, record: CallRecord, request: ModelRequest, work: RequestWork
) -> list[EncodedPrompt]:
    """Return the request's prompts, encoded; write the first of them and the sampling to `record`.

    Raises Refusal for a request that cannot be answered, such as a prompt that does not fit into the context.
    """
    urls = image_urls(request.messages)
    record.as_sent = without_data(request, urls)
    room = policy.engine.model.context_length
    prompts = await read_prompts(policy, dialect, request, urls, work, room)
    most = room if request.sampling.max_tokens == 0 else room - 1
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest > most:
        raise dialect.too_long(room, longest)
    record.prompt_ids, record.images = prompts[0].ids, prompts[0].images
    if record.images:
        record.as_sent = with_digests(request, record.images)
    requested = with_known_ids(request.sampling, policy.engine.model.vocab_size)
    own = None if policy.follows_agents else policy.sampling
    sampling = requested if own is None else sampling_for(record.origin.rollout, requested, own)
    if request.answer_format is not None or request.forced is not None:
        grammar = await work.run_on_thread(lambda: _grammar(policy, request))
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
    record.sampling = sampling
    warn_of_untrainable(record.origin, record.sampling, records_truncation=policy.engine.records_truncation)
    return prompts


def _grammar(policy: ServedPolicy, request: ModelRequest) -> str:
    """Return the grammar of the answer; empty if all text is possible. Raises Refusal if there is none."""
    if request.answer_format is not None:
        check_format(request.answer_format)
    try:
        return policy.codec.grammar(
            request.tools, request.forced, request.answer_format, only_one_call=request.only_one_call
        )
    except GrammarError as error:
        raise _no_format(request, error) from error


def _no_format(request: ModelRequest, error: GrammarError) -> Refusal:
    """Return the refusal of a format, or of tools, of which no grammar can be made that the engine can follow."""
    field = "tools" if request.answer_format is None else request.answer_format.field
    return invalid(f"The format of the answer is not available here: {error}", field)


def _determine(record: CallRecord, sampling: Sampling, dialect: Dialect, draws: CallSeeds) -> None:
    """Derive the sampling seed and the call id from the prompt, for a deterministic run.

    Ids of tool calls derive from the call id, and later prompts may contain them.
    """
    images = [number for image in record.images for number in bytes.fromhex(image.digest)]
    prompt = [*(record.prompt_ids or ()), *images]
    seed = draws.seed(record.origin.rollout.rollout_id, record.origin.attempt_id, prompt)
    record.call_id = f"{dialect.id_prefix}{seed:014x}"
    if sampling.seed is None:
        record.sampling = msgspec.structs.replace(sampling, seed=seed)


async def read_request(
    policy: ServedPolicy, dialect: Dialect, origin: Origin, body: bytes, work: RequestWork
) -> Exchange:
    """Parse and check a request.

    Raises Refusal for a request that no response can satisfy. The length is checked first, before the body is parsed.
    """
    if len(body) > MAX_UNCHECKED_BYTES:
        room = policy.engine.model.context_length * dialect.contexts
        least = least_of_body(len(body), policy.codec)
        if least >= room and not may_have_images(body):  # the files of images are no text
            raise dialect.too_long(room, least)
        await work.run(len(body), lambda: check_elements(body, room))
    return await dialect.parse(body, origin, work)


def _records(
    policy: ServedPolicy,
    dialect: Dialect,
    record: CallRecord,
    prompts: Sequence[EncodedPrompt],
    request: ModelRequest,
) -> list[CallRecord]:
    """Return one record for each choice of each prompt; each has its own call id, which is the engine's request id."""
    assert record.sampling is not None
    records: list[CallRecord] = []
    for index, prompt in enumerate(prompts):
        of_prompt = msgspec.structs.replace(record, prompt_ids=prompt.ids, images=prompt.images)
        if request.prompts:
            of_prompt.as_sent = msgspec.structs.replace(record.as_sent, messages=recorded_messages(prompt))
            of_prompt.prompt_index = index if len(prompts) > 1 else None
            of_prompt.replaced = [one for one in record.replaced if one.position == index]
        if policy.call_seeds is not None:
            _determine(of_prompt, record.sampling, dialect, policy.call_seeds)
        records += [_of_choice(of_prompt, n) for n in range(request.choices)]
    if len(records) == 1:
        return records
    return [
        msgspec.structs.replace(one, call_id=f"{one.call_id}-{number}", choice=number)
        for number, one in enumerate(records)
    ]


def _of_choice(record: CallRecord, n: int) -> CallRecord:
    """Return the record of choice `n` of a prompt.

    Its seed differs from that of the other choices; with one seed, all choices would be equal.
    """
    sampling = record.sampling
    if sampling is not None and sampling.seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=sampling.seed + n)
    return msgspec.structs.replace(
        record, sampling=sampling, ids=[], logprobs=[], sampling_logprobs=[], top=[], kept=[], versions=[]
    )


async def _generate(
    policy: ServedPolicy,
    choices: Sequence[_Choice],
    prompts: Sequence[EncodedPrompt],
    retry_cache: RetryCache,
    watch: ClientWatch,
) -> Refusal | None:
    """Score the prompts that the response repeats; generate all choices, and stream them where the agent requested it.

    Returns the refusal for the client if the engine or the gateway failed, else None.
    """
    records = [choice.record for choice in choices]
    try:
        with watch.cancelling():
            await _score(policy, choices, prompts)
            await _side_by_side(policy, choices)
    except ClientGone:
        if not all(choice.has_ended for choice in choices):
            for choice in choices:
                choice.cut(reasons.DISCONNECTED)
    except asyncio.CancelledError:
        for choice in choices:
            choice.cut(reasons.STOPPED)
        await asyncio.shield(retry_cache.keep(*records))
        raise
    except EngineError as error:
        unusable = isinstance(error, UnusableGrammar)
        for record in records:
            record.fail(reasons.REFUSED if unusable else reasons.ENGINE_FAILED, str(error), type(error).__name__)
        return _refusal_for(error, choices[0].request)
    except Exception as error:
        _log.exception("answer %s of attempt %s failed", records[0].response_id, records[0].origin.attempt_id)
        for record in records:
            record.fail(reasons.GATEWAY_FAILED, str(error), type(error).__name__)
        return server_error("The server had an error while processing your request.")
    return None


def _refusal_for(error: EngineError, request: ModelRequest) -> Refusal:
    """Return the refusal for the client after the engine failed."""
    if isinstance(error, UnusableGrammar):
        return _no_format(request, error)
    return server_error(f"The server had an error while processing your request: {error}")


async def _score(policy: ServedPolicy, choices: Sequence[_Choice], prompts: Sequence[EncodedPrompt]) -> None:
    """Compute the log-probabilities of the prompts whose tokens the response repeats, and record them."""
    if prompts[0].tokens is None:
        return
    await _together([score_prompt(policy.engine, prompt) for prompt in prompts])
    for choice in choices:
        choice.record.prompt_logprobs = prompts[choice.record.prompt_index or 0].logprobs


async def _side_by_side(policy: ServedPolicy, choices: Sequence[_Choice]) -> None:
    """Generate all choices concurrently; the first failure cancels the others."""
    if len(choices) == 1:
        return await _draw(policy, choices[0])
    pace = _Pace()
    await _together([_draw(policy, choice, pace) for choice in choices])


async def _together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently; the first failure cancels the others, and is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Pace:
    """Lock that shares the event loop fairly: it lets the choices of one call process their chunks one at a time.

    After `PACE_SECONDS` of work, it yields to the event loop. So a call with many choices uses no more of the event
    loop's time than a call with one choice.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._spent = 0.0

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        self._began = time.perf_counter()

    async def __aexit__(self, *_: object) -> None:
        try:
            self._spent += time.perf_counter() - self._began
            if self._spent > PACE_SECONDS:
                self._spent = 0.0
                await asyncio.sleep(0)
        finally:
            self._turn.release()


async def _draw(policy: ServedPolicy, choice: _Choice, pace: _Pace | None = None) -> None:
    """Generate tokens until the engine ends the choice or the reader stops it.

    The reader stops at a stop string, or after the first tool call where only one is allowed. Raises EngineError if
    the engine aborts the call.
    """
    record = choice.record
    assert record.prompt_ids is not None and record.sampling is not None
    if record.sampling.max_tokens == 0:
        nothing = TokenChunk(
            ids=[], logprobs=[], sampling_logprobs=[], version=policy.engine.version, finish_reason="length"
        )
        choice.take(nothing)
        choice.read(nothing)
        return
    request = GenerateRequest(
        request_id=record.call_id,
        prompt_ids=list(record.prompt_ids),
        sampling=record.sampling,
        stop_ids=policy.codec.stop_ids,
        top_logprobs=choice.request.top_logprobs,
        rollout_id=record.origin.rollout.rollout_id,
        images=record.images,
    )
    answer = cast("AsyncGenerator[TokenChunk]", policy.engine.generate(request))
    async with aclosing(answer):
        async for chunk in answer:
            choice.take(chunk)
            if pace is None:
                finish = choice.read(chunk)
                if choice.unsent:
                    await choice.send()
            else:
                async with pace:
                    finish = choice.read(chunk)
                    await choice.send()
            if finish == "abort":
                break
            if finish is not None:
                return
    raise EngineError(BROKEN_OFF)
