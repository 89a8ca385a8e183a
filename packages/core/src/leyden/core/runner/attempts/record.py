"""Stores what a runner noted of an attempt, so that one span that cannot be stored does not take the others with it."""

from collections.abc import Sequence
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.failure import Failure
from leyden.core.data.span import Span
from leyden.core.errors import NotFound, StoreError
from leyden.core.runner.attempts.own_failures import own_failure
from leyden.core.store.base import LightningStore
from leyden.core.store.provenance import without_call_records

_CALLED = {
    semconv.RESULT: "result",
    semconv.REWARD: "reward",
    semconv.EXCEPTION: "exception",
}
"""What a message calls the runner's own spans."""


async def store_notes(store: LightningStore, notes: Sequence[Span]) -> list[Failure]:
    """Store `notes` together; where that is refused, one by one. Returns why some of them cannot be stored.

    Raises StoreError when the store does not work, or does not know the attempt.
    """
    try:
        await store.add_many_spans(await without_call_records(notes))
    except Exception as error:  # broad: a span that cannot be encoded raises whatever its encoder does
        if not is_refusal(error):
            raise
    else:
        return []
    refused: list[Failure] = []
    for note in notes:
        try:
            await store.add_span(*await without_call_records([note]))
        except Exception as error:  # broad: as above; the others are stored all the same
            if not is_refusal(error):
                raise
            refused.append(own_failure(f"{called(note)} cannot be recorded", error))
    return refused


def not_stored(own: Sequence[Failure], others: tuple[int, str] | None) -> dict[str, Any]:
    """As the attempt's metadata counts the spans that were not stored: the runner's `own`, and those of frameworks.

    Empty where all were.
    """
    count, reason = others or (0, "")
    if not own and not count:
        return {}
    return {"spans": len(own) + count, "reason": own[0].message if own else reason}


def called(note: Span) -> str:
    """What a message calls a span that a runner or an emitter wrote."""
    return _CALLED.get(note.name, f"span {note.name!r}")


def is_refusal(error: Exception) -> bool:
    """Whether a store that works raised `error` because it does not take what it was given."""
    if isinstance(error, StoreError):
        return isinstance(error, ValueError) and not isinstance(error, NotFound)
    return True  # raised on the way to the store, as by an encoder
