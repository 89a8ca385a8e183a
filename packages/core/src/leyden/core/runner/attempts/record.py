"""Storage of the runner's own spans: a span that cannot be stored does not prevent the others from being stored."""

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
"""Names of the runner's own spans in messages."""


async def store_notes(store: LightningStore, notes: Sequence[Span]) -> list[Failure]:
    """Store `notes` in one request, or one by one where the store refuses that.

    Returns one failure for each span that cannot be stored. Raises StoreError when the store does not work or does not
    have the attempt.
    """
    try:
        await store.add_many_spans(await without_call_records(notes))
    except Exception as error:  # broad: encoding a span may raise any exception
        if not is_refusal(error):
            raise
    else:
        return []
    refused: list[Failure] = []
    for note in notes:
        try:
            await store.add_span(*await without_call_records([note]))
        except Exception as error:  # broad: as above; the other spans are still stored
            if not is_refusal(error):
                raise
            refused.append(own_failure(f"{called(note)} cannot be recorded", error))
    return refused


def not_stored(own: Sequence[Failure], others: tuple[int, str] | None) -> dict[str, Any]:
    """Return the count of spans that were not stored, as the attempt's metadata holds it, and the first reason.

    `own` are the runner's spans, `others` those of frameworks. Empty where all spans were stored.
    """
    count, reason = others or (0, "")
    if not own and not count:
        return {}
    return {"spans": len(own) + count, "reason": own[0].message if own else reason}


def called(note: Span) -> str:
    """Return the name of a span in messages."""
    return _CALLED.get(note.name, f"span {note.name!r}")


def is_refusal(error: Exception) -> bool:
    """Return whether `error` means that a working store refused the data, rather than that the store failed."""
    if isinstance(error, StoreError):
        return isinstance(error, ValueError) and not isinstance(error, NotFound)
    return True  # raised before the request reached the store, as by an encoder
