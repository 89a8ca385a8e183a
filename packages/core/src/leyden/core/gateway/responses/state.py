"""`Conversations`: the answers that an agent of the Responses API can go on from. Knows nothing of HTTP or of models.

They are kept in the records of the attempt's calls and read from there: nothing else needs to be durable. What is in
memory only saves reading them again.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.retry_cache import Ledger
from leyden.core.gateway.refusal import Refusal, server_error
from leyden.core.gateway.responses.format import Response, usage
from leyden.core.gateway.responses.items import Item, item_id

REMEMBERED = 512
"""Answers that are kept in memory; the oldest is forgotten first."""
LARGEST = 128 << 10
"""Bytes, as JSON, of an answer and its input that are kept in memory; the records keep every one."""

INLINE = 64 << 10
"""Bytes of answers in records that are decoded where they are needed; more of them off the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One stored answer."""

    answer: Response
    items: list[Item]
    """What its request added to the conversation, each item with an id."""
    deleted: bool = False
    """Whether the agent has deleted it: it can be neither read nor gone on from, later answers that did still can."""

    @property
    def id(self) -> str:
        """Id of the answer."""
        return self.answer["id"]

    @property
    def previous(self) -> str | None:
        """Id of the answer before it."""
        return self.answer["previous_response_id"]

    def attributes(self) -> Attributes:
        """Return what the record of the call keeps, so that `turns_in` finds this turn again."""
        return {
            semconv.RESPONSES_ANSWER: msgspec.json.encode(self.answer).decode(),
            semconv.RESPONSES_INPUT: msgspec.json.encode(self.items).decode(),
        }


def named_items(items: Sequence[Item], response_id: str) -> list[Item]:
    """Return items that each have an id: the one that they came with, or one that follows from the answer's."""
    return [
        item if "id" in item else {"id": item_id(item["type"], response_id, f"input/{place}")} | item
        for place, item in enumerate(items)
    ]


def turns_in(spans: Sequence[Span]) -> dict[str, Turn]:
    """Return the stored answers in an attempt's records, by id."""
    turns: dict[str, Turn] = {}
    deleted: set[str] = set()
    for span in spans:
        values = span.attributes
        if semconv.RESPONSES_DELETED in values:
            deleted.add(str(values[semconv.RESPONSES_DELETED]))
        if semconv.RESPONSES_ANSWER in values:
            answer = msgspec.json.decode(str(values[semconv.RESPONSES_ANSWER]), type=Response)
            counts = (int(str(values[key])) for key in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS))
            items = msgspec.json.decode(str(values[semconv.RESPONSES_INPUT]), type=list[Item])
            turns[answer["id"]] = Turn(answer=answer | {"usage": usage(*counts)}, items=items)
    return {key: replace(turn, deleted=True) if key in deleted else turn for key, turn in turns.items()}


def size_of(turn: Turn) -> int:
    """Return the bytes of a stored answer as JSON, with what it was given to."""
    return len(msgspec.json.encode((turn.answer, turn.items)))


async def _read(spans: Sequence[Span]) -> tuple[dict[str, Turn], dict[str, int]]:
    """Return the stored answers in records and their sizes; off the event loop where that is long work."""

    def read() -> tuple[dict[str, Turn], dict[str, int]]:
        turns = turns_in(spans)
        return turns, {key: size_of(turn) for key, turn in turns.items()}

    size = sum(len(str(span.attributes.get(semconv.RESPONSES_ANSWER, ""))) for span in spans)
    size += sum(len(str(span.attributes.get(semconv.RESPONSES_INPUT, ""))) for span in spans)
    return read() if size <= INLINE else await asyncio.to_thread(read)


class Conversations:
    """The stored answers in the records of `ledger`, for the attempt that asks only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._turns: OrderedDict[tuple[str, str], Turn] = OrderedDict()

    async def until(self, origin: Origin, response_id: str) -> list[Item]:
        """Return a conversation up to and with an answer; instructions are no part of it.

        Raises Refusal where there is no such answer.
        """
        turns = await self._path(origin, response_id)
        if not turns or turns[-1].deleted:
            message = f"Previous response with id '{response_id}' not found."
            raise Refusal(400, message, param="previous_response_id", code="previous_response_not_found")
        return _said(turns)

    async def read_by(self, origin: Origin, turn: Turn) -> list[Item]:
        """Return the conversation that an answer was given to."""
        earlier = await self._path(origin, turn.previous) if turn.previous else []
        return [*_said(earlier), *turn.items]

    async def find(self, origin: Origin, response_id: str) -> Turn | None:
        """Return a stored answer; None where there is none, or no longer."""
        turn = self._turns.get((origin.attempt_id, response_id)) or (await self._all(origin)).get(response_id)
        return None if turn is None or turn.deleted else turn

    async def item(self, origin: Origin, wanted: str) -> Item:
        """Return an item of any of the attempt's conversations; raises Refusal where there is none."""
        item = _item(self._known(origin), wanted) or _item(await self._all(origin), wanted)
        if item is None:
            raise Refusal(404, f"Item with id '{wanted}' not found.", param="input")
        return item

    def remember(self, origin: Origin, turn: Turn) -> None:
        """Keep an answer in mind that is in the records."""
        self._remember(origin, turn, size_of(turn))

    def _remember(self, origin: Origin, turn: Turn, size: int) -> None:
        key = (origin.attempt_id, turn.id)
        if size > LARGEST:
            self._turns.pop(key, None)
            return
        self._turns[key] = turn
        self._turns.move_to_end(key)
        if len(self._turns) > REMEMBERED:
            self._turns.popitem(last=False)

    async def delete(self, origin: Origin, turn: Turn) -> None:
        """Forget a stored answer for good; raises Refusal where that could not be recorded."""
        now = time.time()
        note = Span(
            rollout_id=origin.rollout.rollout_id,
            attempt_id=origin.attempt_id,
            sequence_id=0,
            trace_id=origin.trace_id,
            span_id=secrets.token_hex(8),
            parent_id=origin.parent_id,
            name="delete response",
            status=SpanStatus(code="ok"),
            attributes={semconv.RESPONSES_DELETED: turn.id},
            start_time=now,
            end_time=now,
        )
        if not await self._ledger.note(note):
            raise server_error("The response could not be deleted.")
        self.remember(origin, replace(turn, deleted=True))

    async def _path(self, origin: Origin, response_id: str) -> list[Turn]:
        """Return the answers that lead to one, and it; empty where one of them is not there."""
        return _chain(self._in_memory(origin), response_id) or _chain((await self._all(origin)).get, response_id)

    def _in_memory(self, origin: Origin) -> Callable[[str], Turn | None]:
        return lambda response_id: self._turns.get((origin.attempt_id, response_id))

    def _known(self, origin: Origin) -> dict[str, Turn]:
        return {turn.id: turn for (attempt_id, _), turn in self._turns.items() if attempt_id == origin.attempt_id}

    async def _all(self, origin: Origin) -> dict[str, Turn]:
        """Return the stored answers of an attempt, by id, as the records have them."""
        turns, sizes = await _read(await self._ledger.spans(origin))
        for key, turn in self._known(origin).items():
            if turn.deleted:  # perhaps after the records were read
                turns[key] = turn
        for key, turn in turns.items():
            self._remember(origin, turn, sizes[key])
        return turns


def _chain(find: Callable[[str], Turn | None], response_id: str) -> list[Turn]:
    """Return the answers up to and with one, in order; empty where one of them cannot be found."""
    turns: list[Turn] = []
    wanted: str | None = response_id
    while wanted is not None:
        turn = find(wanted)
        if turn is None:
            return []
        turns.append(turn)
        wanted = turn.previous
    return turns[::-1]


def _said(turns: Sequence[Turn]) -> list[Item]:
    return [item for turn in turns for item in (*turn.items, *turn.answer["output"])]


def _item(turns: Mapping[str, Turn], wanted: str) -> Item | None:
    alive = (turn for turn in turns.values() if not turn.deleted)
    return next((item for turn in alive for item in _said([turn]) if item["id"] == wanted), None)
