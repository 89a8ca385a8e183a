"""Call service: answers one model call in any dialect; it encodes the prompt, samples tokens, replies and records."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import msgspec
from starlette.types import Send

from leyden.core.data import reasons
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import FinishReason, GenerateRequest, TokenChunk
from leyden.core.errors import EngineError, GatewayError, GrammarError
from leyden.core.gateway.answer_format import check_format
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.retry_cache import RetryCache, fingerprint, replay
from leyden.core.gateway.calls.seeds import CallSeeds
from leyden.core.gateway.calls.served_policy import ServedPolicy, sampling_for, warn_of_untrainable
from leyden.core.gateway.chat.format import answer_message
from leyden.core.gateway.codecs.answer_reader import AnswerReader, ReadPart, ReadToken
from leyden.core.gateway.dialect import Dialect, Exchange, FinishedChoice, Reply
from leyden.core.gateway.http.asgi import ClientGone, ClientWatch
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.limits.prompt_size import MAX_UNCHECKED_BYTES, check_elements, least_of_body, least_of_request
from leyden.core.gateway.model_request import ModelRequest, check_ids
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
    read_along: bool = field(init=False)
    """Whether the tokens are parsed while they are sampled, and not all at the end."""

    def __post_init__(self) -> None:
        self.read_along = self.reply.live or self.reader.may_stop_early

    @property
    def has_ended(self) -> bool:
        """Whether the whole choice was generated and parsed."""
        return self.record.finish_reason is not None

    def read(self, chunk: TokenChunk) -> FinishReason | None:
        """Record a chunk of tokens, and parse it if tokens are parsed as they arrive.

        Return the finish reason if the engine or the reader ends the choice with this chunk. For any reason except
        `abort`, the choice is then complete.
        """
        self.record.take(chunk)
        if self.read_along:
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
        return FinishedChoice(reader=self.reader, tokens=len(self.record.ids), engine_finish=finish)

    def _read_rest(self) -> list[ReadPart]:
        record = self.record
        unread = [] if self.read_along else self.reader.push(record.ids, record.logprobs, record.top or None)
        return [*unread, *self.reader.finish()]

    def _note_output(self) -> None:
        message = answer_message(self.reader.content, self.reader.calls)
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
    response_id = f"{dialect.id_prefix}{secrets.token_hex(14)}"
    record = CallRecord(
        origin=origin,
        call_id=response_id,
        response_id=response_id,
        dialect=dialect.name,
        fingerprint=mark,
        policy=policy.name,
        not_trained=None if policy.trained else reasons.FROZEN,
    )
    try:
        with watch.cancelling():
            exchange = await read_request(policy, dialect, origin, body, work)
            await _accept(policy, dialect, record, exchange.request, work)
    except Refusal as refusal:
        record.fail(reasons.REFUSED, str(refusal), refusal.body.code or refusal.body.type)
        await retry_cache.keep(record)
        raise
    work.free()
    with retry_cache.in_progress(mark, watch):
        await _answer(policy, exchange, record, retry_cache, watch, send)


async def _answer(
    policy: ServedPolicy,
    exchange: Exchange,
    record: CallRecord,
    retry_cache: RetryCache,
    watch: ClientWatch,
    send: Send,
) -> None:
    reply = exchange.reply(send, record.response_id, int(record.started))
    choices = [
        _Choice(one, AnswerReader(policy.codec, exchange.request, one.call_id), exchange.request, reply)
        for one in _records(record, exchange.request.choices)
    ]
    records = [choice.record for choice in choices]
    failure = await _generate(policy, choices, retry_cache, watch)
    finished = [choice.finished() for choice in choices]
    whole = all(one.finish_reason for one in records)
    if failure is None and whole:
        records[0].extra = exchange.attributes(record.response_id, int(record.started), finished)
    if not await retry_cache.keep(*records):
        failure = failure or server_error("The call could not be recorded.")
    if failure is not None:
        await reply.fail(failure)
    elif not watch.gone:
        await reply.end(finished, len(record.prompt_ids or ()))
    elif whole and record.fingerprint:
        retry_cache.mark_undelivered(record.fingerprint)


async def _accept(
    policy: ServedPolicy, dialect: Dialect, record: CallRecord, request: ModelRequest, work: RequestWork
) -> None:
    """Encode the request's prompt, choose its sampling, and write both to `record`.

    Raises Refusal for a request that cannot be answered, such as a prompt that does not fit into the context.
    """
    record.as_sent = request.as_sent
    room = policy.engine.model.context_length
    prompt_ids = await read_prompt(policy, dialect, request, work, room)
    if len(prompt_ids) >= room:
        raise dialect.too_long(room, len(prompt_ids))
    record.prompt_ids = prompt_ids
    check_ids(request.sampling, policy.engine.model.vocab_size)
    sampling = sampling_for(record.origin.rollout, request.sampling, policy.sampling)
    if request.answer_format is not None or request.forced is not None:
        grammar = await work.run_on_thread(lambda: _grammar(policy, request))
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
    record.sampling = sampling
    warn_of_untrainable(record.origin, record.sampling)
    if policy.call_seeds is not None:
        _determine(record, record.sampling, dialect, policy.call_seeds)


def _grammar(policy: ServedPolicy, request: ModelRequest) -> str:
    """Return the grammar of the answer; empty if all text is possible. Raises Refusal if there is none."""
    if request.answer_format is not None:
        check_format(request.answer_format)
    try:
        return policy.codec.grammar(
            request.tools, request.forced, request.answer_format, only_one_call=request.only_one_call
        )
    except GrammarError as error:
        field = None if request.answer_format is None else request.answer_format.field
        raise invalid(f"The format of the answer is not available here: {error}", field) from error


def _determine(record: CallRecord, sampling: Sampling, dialect: Dialect, draws: CallSeeds) -> None:
    """Derive the sampling seed and the call id from the prompt, for a deterministic run.

    Ids of tool calls derive from the call id, and later prompts may contain them.
    """
    seed = draws.seed(record.origin.rollout.rollout_id, record.origin.attempt_id, record.prompt_ids or ())
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
        room = policy.engine.model.context_length
        least = least_of_body(len(body), policy.codec)
        if least >= room:
            raise dialect.too_long(room, least)
        await work.run(len(body), lambda: check_elements(body, room))
    return await dialect.parse(body, origin, work)


async def read_prompt(
    policy: ServedPolicy, dialect: Dialect, request: ModelRequest, work: RequestWork, room: int
) -> list[int]:
    """Return the token ids of the prompt.

    Raises Refusal if the prompt has at least `room` tokens by a lower bound that needs no encoding. Also raises
    Refusal if the chat template cannot render the messages.
    """
    size = len(request.as_sent.messages or "") + len(request.as_sent.tools or "")

    def encode() -> list[int]:
        least = 0 if size < room else least_of_request(request, policy.codec)  # never more than `size`
        if least >= room:
            raise dialect.too_long(room, least)
        return policy.codec.encode(
            request.messages,
            request.tools,
            request.forced,
            formatted=request.answer_format is not None,
            variables=request.template_variables,
        )

    try:
        return await work.render(size, encode)
    except Refusal:
        raise
    except (GatewayError, RecursionError) as error:  # RecursionError: messages nested too deeply for the template
        raise invalid(str(error), dialect.prompt_field) from error


def _records(record: CallRecord, choices: int) -> list[CallRecord]:
    """Return one record for each choice; each has its own call id, which is the engine's request id."""
    if choices == 1:
        return [record]
    assert record.sampling is not None
    return [
        msgspec.structs.replace(
            record,
            call_id=f"{record.call_id}-{n}",
            choice=n,
            sampling=_of_choice(record.sampling, n),
            ids=[],
            logprobs=[],
            sampling_logprobs=[],
            top=[],
            versions=[],
        )
        for n in range(choices)
    ]


def _of_choice(sampling: Sampling, n: int) -> Sampling:
    """Return the sampling with a different seed for each choice; with one seed, all choices would be equal."""
    return sampling if sampling.seed is None else msgspec.structs.replace(sampling, seed=sampling.seed + n)


async def _generate(
    policy: ServedPolicy, choices: Sequence[_Choice], retry_cache: RetryCache, watch: ClientWatch
) -> Refusal | None:
    """Generate all choices, and stream them where the agent requested it.

    Returns the refusal for the client if the engine or the gateway failed, else None.
    """
    records = [choice.record for choice in choices]
    try:
        with watch.cancelling():
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
        for record in records:
            record.fail(reasons.ENGINE_FAILED, str(error), type(error).__name__)
        return server_error(f"The server had an error while processing your request: {error}")
    except Exception as error:
        _log.exception("answer %s of attempt %s failed", records[0].response_id, records[0].origin.attempt_id)
        for record in records:
            record.fail(reasons.GATEWAY_FAILED, str(error), type(error).__name__)
        return server_error("The server had an error while processing your request.")
    return None


async def _side_by_side(policy: ServedPolicy, choices: Sequence[_Choice]) -> None:
    """Generate all choices concurrently; the first failure cancels the others."""
    if len(choices) == 1:
        return await _draw(policy, choices[0])
    pace = _Pace()
    tasks = [asyncio.create_task(_draw(policy, choice, pace)) for choice in choices]
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
    request = GenerateRequest(
        request_id=record.call_id,
        prompt_ids=list(record.prompt_ids),
        sampling=record.sampling,
        stop_ids=policy.codec.stop_ids,
        top_logprobs=choice.request.top_logprobs,
        rollout_id=record.origin.rollout.rollout_id,
    )
    answer = cast("AsyncGenerator[TokenChunk]", policy.engine.generate(request))
    async with aclosing(answer):
        async for chunk in answer:
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
