"""Conversation state: finds the stored responses that a request of the Responses API can continue from.

The responses are stored in the spans of the attempt's calls and read from there, so no other storage is needed. The
copies in memory are only a cache.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.retry_cache import RetryCache
from leyden.core.gateway.refusal import Refusal, server_error
from leyden.core.gateway.responses.format import Response, usage
from leyden.core.gateway.responses.items import Item, item_id

REMEMBERED = 512
"""Number of responses in the cache; the least recently added is dropped first."""
LARGEST = 128 << 10
"""Largest response with its input in the cache, in bytes of JSON; the records keep larger ones too."""

DELETION = "delete response"
"""Name of the span that records that a response was deleted."""
INLINE = 64 << 10
"""Most bytes of stored responses that are decoded on the event loop; more bytes are decoded on a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One stored response with the input of its request."""

    answer: Response
    items: list[Item]
    """Items that its request added to the conversation, each with an id."""
    deleted: bool = False
    """Whether the agent has deleted the response.

    A deleted response can be neither read nor continued. Later responses that continue it stay usable.
    """

    @property
    def id(self) -> str:
        """Id of the response."""
        return self.answer["id"]

    @property
    def previous(self) -> str | None:
        """Id of the response before it in the conversation; None for the first."""
        return self.answer["previous_response_id"]

    def attributes(self) -> Attributes:
        """Return the span attributes from which `turns_in` restores this turn."""
        return {
            semconv.RESPONSES_ANSWER: msgspec.json.encode(self.answer).decode(),
            semconv.RESPONSES_INPUT: msgspec.json.encode(self.items).decode(),
        }


def named_items(items: Sequence[Item], response_id: str) -> list[Item]:
    """Return items that each have an id: their own, or one derived from the response's id and the item's place."""
    return [
        item if "id" in item else {"id": item_id(item["type"], response_id, f"input/{index}")} | item
        for index, item in enumerate(items)
    ]


def turns_in(spans: Sequence[Span]) -> dict[str, Turn]:
    """Return the stored responses in an attempt's spans, by id."""
    turns: dict[str, Turn] = {}
    deleted: set[str] = set()
    for span in spans:
        values = span.attributes
        if semconv.RESPONSES_DELETED in values:
            deleted.add(str(values[semconv.RESPONSES_DELETED]))
        if semconv.RESPONSES_ANSWER in values:
            answer = msgspec.json.decode(str(values[semconv.RESPONSES_ANSWER]), type=Response)
            read, written = (int(str(values[key])) for key in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS))
            items = msgspec.json.decode(str(values[semconv.RESPONSES_INPUT]), type=list[Item])
            thoughts = answer["usage"]["output_tokens_details"]["reasoning_tokens"] if answer.get("usage") else 0
            turns[answer["id"]] = Turn(answer=answer | {"usage": usage(read, written, thoughts)}, items=items)
    return {key: replace(turn, deleted=True) if key in deleted else turn for key, turn in turns.items()}


def size_of(turn: Turn) -> int:
    """Return the bytes of a stored response with its input, as JSON."""
    return len(msgspec.json.encode((turn.answer, turn.items)))


async def _read(spans: Sequence[Span]) -> tuple[dict[str, Turn], dict[str, int]]:
    """Return the stored responses in spans and their sizes in bytes, by id; decodes many bytes on a thread."""

    def read() -> tuple[dict[str, Turn], dict[str, int]]:
        turns = turns_in(spans)
        return turns, {key: size_of(turn) for key, turn in turns.items()}

    size = sum(len(str(span.attributes.get(semconv.RESPONSES_ANSWER, ""))) for span in spans)
    size += sum(len(str(span.attributes.get(semconv.RESPONSES_INPUT, ""))) for span in spans)
    return read() if size <= INLINE else await asyncio.to_thread(read)


class Conversations:
    """Stored responses in the spans of `retry_cache`; each attempt can access only its own."""

    def __init__(self, retry_cache: RetryCache) -> None:
        self._retry_cache = retry_cache
        self.alone = True
        """Whether no other process answers requests of the same attempts, and could delete responses."""
        self._turns: OrderedDict[tuple[str, str], Turn] = OrderedDict()

    async def items_until(self, origin: Origin, response_id: str) -> list[Item]:
        """Return the items of a conversation up to and including a response, without instructions.

        Raises Refusal if the attempt has no such response.
        """
        turns = await self._turns_until(origin, response_id)
        if not turns or turns[-1].deleted:
            message = f"Previous response with id '{response_id}' not found."
            raise Refusal(400, message, param="previous_response_id", code="previous_response_not_found")
        return _items_of(turns)

    async def input_items(self, origin: Origin, turn: Turn) -> list[Item]:
        """Return the items of the conversation that a response answered."""
        earlier = await self._turns_until(origin, turn.previous) if turn.previous else []
        return [*_items_of(earlier), *turn.items]

    async def find(self, origin: Origin, response_id: str) -> Turn | None:
        """Return a stored response; None if it does not exist or was deleted."""
        await self._read_deletions(origin)
        turn = self._turns.get((origin.attempt_id, response_id)) or (await self._all_turns(origin)).get(response_id)
        return None if turn is None or turn.deleted else turn

    async def item(self, origin: Origin, wanted: str) -> Item:
        """Return an item of any conversation of the attempt; raises Refusal if there is no such item."""
        await self._read_deletions(origin)
        item = _item(self._cached_turns(origin), wanted) or _item(await self._all_turns(origin), wanted)
        if item is None:
            raise Refusal(404, f"Item with id '{wanted}' not found.", param="input")
        return item

    def remember(self, origin: Origin, turn: Turn) -> None:
        """Add a stored response to the cache."""
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
        """Delete a stored response permanently; raises Refusal if the deletion could not be recorded."""
        now = time.time()
        span = origin.span(DELETION, {semconv.RESPONSES_DELETED: turn.id}, now, now)
        if not await self._retry_cache.keep_span(span):
            raise server_error("The response could not be deleted.")
        self.remember(origin, replace(turn, deleted=True))

    async def _turns_until(self, origin: Origin, response_id: str) -> list[Turn]:
        """Return the responses up to and including one, in order; empty if one of them is missing."""
        await self._read_deletions(origin)
        return _chain(self._find_cached(origin), response_id) or _chain(
            (await self._all_turns(origin)).get, response_id
        )

    async def _read_deletions(self, origin: Origin) -> None:
        """Mark the responses in the cache that another process has deleted."""
        if self.alone or not self._cached_turns(origin):
            return
        for span in await self._retry_cache.spans(origin, name=DELETION):
            turn = self._turns.get((origin.attempt_id, str(span.attributes[semconv.RESPONSES_DELETED])))
            if turn is not None and not turn.deleted:
                self.remember(origin, replace(turn, deleted=True))

    def _find_cached(self, origin: Origin) -> Callable[[str], Turn | None]:
        return lambda response_id: self._turns.get((origin.attempt_id, response_id))

    def _cached_turns(self, origin: Origin) -> dict[str, Turn]:
        return {turn.id: turn for (attempt_id, _), turn in self._turns.items() if attempt_id == origin.attempt_id}

    async def _all_turns(self, origin: Origin) -> dict[str, Turn]:
        """Return all stored responses of an attempt from its spans, by id."""
        turns, sizes = await _read(await self._retry_cache.spans(origin))
        for key, turn in self._cached_turns(origin).items():
            if turn.deleted:  # it may have been deleted after the spans were read
                turns[key] = turn
        for key, turn in turns.items():
            self._remember(origin, turn, sizes[key])
        return turns


def _chain(find: Callable[[str], Turn | None], response_id: str) -> list[Turn]:
    """Return the responses up to and including one, in order; empty if `find` does not find one of them."""
    turns: list[Turn] = []
    wanted: str | None = response_id
    while wanted is not None:
        turn = find(wanted)
        if turn is None:
            return []
        turns.append(turn)
        wanted = turn.previous
    return turns[::-1]


def _items_of(turns: Sequence[Turn]) -> list[Item]:
    return [item for turn in turns for item in (*turn.items, *turn.answer["output"])]


def _item(turns: Mapping[str, Turn], wanted: str) -> Item | None:
    readable_turns = (turn for turn in turns.values() if not turn.deleted)
    return next((item for turn in readable_turns for item in _items_of([turn]) if item["id"] == wanted), None)
