"""How fast spans are stored, beside the floors: the same objects in commits of the same size, one after the other."""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from leyden.core.data.rollout import Attempt, EnqueueRollout
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from stores.floors import FLOOR_BACKENDS, FLOORS, Floor, Row, pack
from stores.material import SPANS_OF_ATTEMPT, Kind, attempts_for, make_spans
from stores.places import new_uris

PER_COMMIT, WRITERS = (1, 100), (1, 8)
SIDE = "store"
_FEWER_CHAT, _FEWER_ALONE = 2, 2
"""Chat spans take longer, and so do spans that have a commit each: there are so many times fewer."""

T = TypeVar("T")
Figures = dict[str, float]


class Work(NamedTuple):
    """Spans to be stored by several writers at once."""

    kind: Kind
    per_commit: int
    writers: int
    spans: Sequence[Span]

    def shares(self, items: Sequence[T]) -> list[list[Sequence[T]]]:
        """Divide what there is for each span: for each writer, its commits."""
        each = -(-len(items) // self.writers)
        own = [items[n : n + each] for n in range(0, len(items), each)]
        return [[part[n : n + self.per_commit] for n in range(0, len(part), self.per_commit)] for part in own]


def ingest(backend: str, folder: Path, spans: int, number: int) -> list[dict[str, Any]]:
    """Measure every kind, size of commit and number of writers; sides go in the opposite order in every other round."""
    found: list[dict[str, Any]] = []
    with asyncio.Runner() as loop, ExitStack() as stack:
        new_uri = stack.enter_context(new_uris(backend, folder))
        floor_backend = FLOOR_BACKENDS.get(backend)
        new_floor_uri = stack.enter_context(new_uris(floor_backend, folder / "floor")) if floor_backend else new_uri
        store = loop.run(open_store(new_uri()))
        stack.callback(lambda: loop.run(store.close()))
        floor_uris = {
            side: (make_floor, loop.run(_with_tables(new_floor_uri()))) for side, make_floor in FLOORS[backend].items()
        }
        first = 0
        for kind, per_commit, writers in product(get_args(Kind), PER_COMMIT, WRITERS):
            count = _count(spans, kind, per_commit, writers)
            attempts = loop.run(claim(store, attempts_for(count)))
            work = Work(kind, per_commit, writers, make_spans(kind, attempts, count, first))
            first += count
            sides: list[str] = [*floor_uris, SIDE][:: -1 if number % 2 else 1]
            for side in sides:
                gc.collect()
                figures = loop.run(_stored(store, work)) if side == SIDE else _written(*floor_uris[side], work)
                row = {"backend": backend, "kind": kind, "per_commit": per_commit, "writers": writers, "side": side}
                found.append({**row, "round": number, **figures})
    return found


async def claim(store: LightningStore, count: int) -> list[Attempt]:
    """Queue rollouts and claim them; the queue must have been empty."""
    await store.enqueue_many_rollouts([EnqueueRollout(input={"question": n}) for n in range(count)])
    claimed = await store.dequeue_many_rollouts(limit=count)
    return [rollout.attempt for rollout in claimed]


def _count(spans: int, kind: Kind, per_commit: int, writers: int) -> int:
    """How many spans to store; each writer has at least one commit of full size."""
    fewer = (_FEWER_CHAT if kind == "chat" else 1) * (_FEWER_ALONE if per_commit == 1 else 1)
    least = per_commit * writers
    return max(spans // fewer // least, 1) * least


async def _with_tables(uri: str) -> str:
    """Make a store's tables for a floor to write to."""
    await (await open_store(uri)).close()
    return uri


async def _stored(store: LightningStore, work: Work) -> Figures:
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_store_all(store, share) for share in work.shares(work.spans)))
    took, used = time.perf_counter() - began, time.process_time() - used
    await _check(store, work)
    return {"spans_per_s": len(work.spans) / took, "cpu_us": used / len(work.spans) * 1e6}


async def _store_all(store: LightningStore, commits: Sequence[Sequence[Span]]) -> None:
    for spans in commits:
        if len(spans) == 1:
            await store.add_span(spans[0])
        else:
            await store.add_many_spans(spans)


async def _check(store: LightningStore, work: Work) -> None:
    """Raise SystemExit unless the last attempt has all of its spans."""
    last = work.spans[-1]
    stored = (await store.query_spans(last.rollout_id, last.attempt_id)).items
    wanted = len(work.spans) % SPANS_OF_ATTEMPT or SPANS_OF_ATTEMPT
    found = next((span for span in stored if span.span_id == last.span_id), None)  # writers at once have no order
    if len(stored) != wanted or found is None or found.attributes != last.attributes:
        raise SystemExit(f"{len(stored)} spans of {last.rollout_id} were stored, not {wanted}, or not as they were")


def _written(make_floor: Callable[[str], Floor], uri: str, work: Work) -> Figures:
    """Pack the spans, then write the rows; what packing takes counts, and is told apart."""
    floors = [make_floor(uri) for _ in range(work.writers)]
    with ThreadPoolExecutor(work.writers) as threads:
        began = time.perf_counter()
        rows = [pack(span, n % SPANS_OF_ATTEMPT + 1) for n, span in enumerate(work.spans)]
        packed = time.perf_counter()
        list(threads.map(_write_all, floors, work.shares(rows)))
        ended = time.perf_counter()
    for floor in floors:
        floor.close()
    return {"spans_per_s": len(rows) / (ended - began), "rows_per_s": len(rows) / (ended - packed)}


def _write_all(floor: Floor, commits: Sequence[Sequence[Row]]) -> None:
    for rows in commits:
        floor.write(rows)
