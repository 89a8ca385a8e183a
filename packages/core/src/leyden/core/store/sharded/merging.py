"""Merged pages: the page of one query over all shards, from pages of each shard.

Each shard returns its rows in the order of the query, together with their places. The rows of all are merged by place.
Where a shard's rows are used up, the next page begins behind its last place, so that rows that were added or removed in
the meantime move no page.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from leyden.core.data.page import Page
from leyden.core.store.common.rows import Rows
from leyden.core.store.query import Place, Query
from leyden.core.store.sharded.shard import Shard
from leyden.core.store.sharded.shards import Shards

N = TypeVar("N")

_SPARE = 16
"""Rows that are read from each shard beyond its even share of the page."""
_MOST = 1000
"""Largest page that is read from a shard, unless the caller wants all rows."""


@dataclass(frozen=True)
class Part(Generic[N]):
    """A page of one shard."""

    items: list[N]
    places: list[Place]
    total: int


Reading = Callable[[Rows, Query], Part[N]]
"""Reads a page of one shard in a transaction."""


@dataclass
class _Stream(Generic[N]):
    """What is left of one shard's rows."""

    shard: Shard
    part: Part[N]
    asked: int
    """Limit of the page; a page with fewer rows is the last."""
    next: int = field(default=0)

    @property
    def place(self) -> Place | None:
        """Place of the next row; None where the page is used up."""
        return self.part.places[self.next] if self.next < len(self.part.places) else None

    @property
    def is_at_end(self) -> bool:
        """Whether there are no rows behind this page."""
        return self.asked < 0 or len(self.part.items) < self.asked

    def taken(self) -> N:
        """Take the next row."""
        self.next += 1
        return self.part.items[self.next - 1]


async def merged_page(shards: Shards, query: Query, read: Reading[N]) -> Page[N]:
    """Return the page of `query` over all shards that can be reached; the page names the others.

    Raises StoreError where none can be reached.
    """
    wanted = -1 if query.limit < 0 else query.offset + query.limit
    count = max(len(await shards.all()), 1)
    asked = min(wanted, _MOST, wanted // count + _SPARE) if query.limit > 0 else query.limit
    each = replace(query, limit=asked, offset=0)
    answers = (await shards.ask(lambda rows: read(rows, each))).require()
    streams = [_Stream(shard, part, asked) for shard, part in answers.by_shard.items()]
    items: list[N] = []
    seen = 0
    while query.limit and (wanted < 0 or seen < wanted):
        first = _first([stream for stream in streams if stream.place is not None], query)
        if first is None:
            break
        item = first.taken()
        seen += 1
        if seen > query.offset:
            items.append(item)
        if first.place is None and not first.is_at_end and (wanted < 0 or seen < wanted):
            behind = replace(each, after=first.part.places[-1])
            more = (await shards.ask(lambda rows, behind=behind: read(rows, behind), among=[first.shard])).require()
            first.part, first.next = more.by_shard[first.shard], 0
    total = sum(part.total for part in answers.by_shard.values())
    return Page(items=items, limit=query.limit, offset=query.offset, total=total, missing=answers.problems)


def _first(streams: list[_Stream[N]], query: Query) -> _Stream[N] | None:
    found: _Stream[N] | None = None
    for stream in streams:
        ahead = None if found is None else found.place
        if ahead is None or (stream.place and stream.place.is_before(ahead, descending=query.order == "desc")):
            found = stream
    return found
