"""Fast path for a single span of a running attempt, the usual case: decided on cached data alone.

Returns None where the span, its attempt or its rollout is no usual case; `span_ingest.add_spans` handles all cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from leyden.core.data.span import Span
from leyden.core.store.common.span_codec import RecentCalls
from leyden.core.store.common.span_ingest import problem
from leyden.core.store.health_check import latest_heartbeat
from leyden.core.store.redis.cache import RedisCache
from leyden.core.store.redis.codec import RolloutAtRest, member, pack_attempt, pack_span
from leyden.core.store.redis.scripts import RedisKeys


@dataclass(frozen=True, slots=True)
class SingleSpanInsert:
    """Changes that the span makes."""

    span: Span
    """The span with its number."""
    old: RolloutAtRest
    new: RolloutAtRest
    packed: bytes
    """Stored form of the span."""

    def arguments(self, keys: RedisKeys) -> list[bytes | str]:
        """Return the arguments of `INSERT_SPAN` for the changes, with the version on which they are based."""
        span, new = self.span, self.new
        rollout_id, attempt = span.rollout_id, new.attempts[span.attempt_id]
        return [
            keys.rollout + rollout_id,
            self.old.version,
            new.version,
            f"a:{span.attempt_id}",
            pack_attempt(attempt),
            str(span.sequence_id),
            keys.span_ids + rollout_id,
            keys.spans + rollout_id,
            keys.counts,
            member(new, span.attempt_id, span.span_id),
            self.packed,
        ]


def single_span_insert(
    cache: RedisCache, recent_calls: RecentCalls, batches: Sequence[Sequence[Span]], size: int, now: float, version: str
) -> SingleSpanInsert | None:
    """Return the changes for the only span of `batches`; None unless its attempt and its rollout are running."""
    if len(batches) != 1 or len(batches[0]) != 1:
        return None
    span = batches[0][0]
    old = cache.rollouts.get(span.rollout_id)
    attempt = None if old is None else old.attempts.get(span.attempt_id)
    if old is None or attempt is None or (old.row.status, attempt.status) != ("running", "running"):
        return None
    number = old.counter + 1
    if (
        span.sequence_id
        or old.tail > old.counter
        or old.tail < 0
        or problem(batches[0], ((span.rollout_id, span.attempt_id),), size)
    ):
        return None
    span = replace(span, sequence_id=number)
    with_heartbeat = replace(attempt, last_heartbeat_time=latest_heartbeat(attempt.last_heartbeat_time, now))
    new = replace(
        old, version=version, counter=number, tail=number, attempts={**old.attempts, span.attempt_id: with_heartbeat}
    )
    return SingleSpanInsert(span, old, new, pack_span(recent_calls.row(span)))
