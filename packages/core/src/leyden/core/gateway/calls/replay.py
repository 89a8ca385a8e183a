"""Replay: sends a recorded response again to a client that did not receive it.

It samples no tokens and records no span.
"""

from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from starlette.types import Send

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.span import Span
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codecs.answer_reader import AnswerReader
from leyden.core.gateway.dialect import Exchange, FinishedChoice


async def replay(policy: ServedPolicy, exchange: Exchange, spans: Sequence[Span], send: Send) -> None:
    """Send the recorded response in the format that `exchange` requests; `spans` has one span per choice, in order."""
    first = spans[0].attributes
    reply = exchange.reply(send, str(first[semconv.RESPONSE_ID]), int(spans[0].start_time))
    choices: list[FinishedChoice] = []
    for index, span in enumerate(spans):
        reader = AnswerReader(policy.codec, exchange.request, str(span.attributes[semconv.CALL_ID]))
        ids, logprobs, top = _sampled_tokens(span)
        parts = [*reader.push(ids, logprobs, top), *reader.finish()]
        if reply.live:
            await reply.show(index, parts, reader.tokens())
        finish = cast("Literal['stop', 'length']", span.attributes.get(semconv.ENGINE_FINISH, "stop"))
        choices.append(FinishedChoice(reader=reader, tokens=len(ids), engine_finish=finish))
    await reply.end(choices, int(str(first[semconv.INPUT_TOKENS])))


def _sampled_tokens(span: Span) -> tuple[list[int], list[float], list[list[tuple[int, float]]] | None]:
    """Return the sampled token ids, their raw log-probabilities, and the most likely tokens at each position."""
    attributes = span.attributes
    ids = list(unpack_ids(cast("bytes", attributes[semconv.RESPONSE_IDS])))
    logprobs = list(unpack_log_probs(cast("bytes", attributes[semconv.RESPONSE_LOGPROBS])))
    top = attributes.get(semconv.TOP_LOGPROBS)
    if top is None:
        return ids, logprobs, None
    return ids, logprobs, msgspec.json.decode(str(top), type=list[list[tuple[int, float]]])
