"""Fills the disk under a SQLite store, and makes room again: `full_disk.py disk|limit FOLDER`; prints what came of it.

`disk` writes a file until its file system is full, `limit` lets no file of this process grow any more.
"""

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from leyden.core.data.rollout import Attempt
from leyden.core.data.run import Run
from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store.open import open_store
from leyden.core.testing.store_contract.shared import claimed, span_of


def fill(how: str, folder: Path) -> None:
    if how == "limit":
        largest = max(path.stat().st_size for path in folder.glob("store.db*"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        return
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def make_room(how: str, folder: Path) -> None:
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        (folder / "filler").unlink()


def large_span(attempt: Attempt, n: int) -> Span:
    return replace(span_of(attempt, f"{n:x}"), attributes={"text": f"{n:08}" * 1000})


async def refused(call: Awaitable[object]) -> list[str]:
    try:
        await call
    except StoreError as error:
        return [str(error)]
    return []


async def main(how: str, folder: Path) -> dict[str, Any]:
    uri = f"sqlite:///{folder}/store.db"
    store = await open_store(uri)
    attempt = (await claimed(store)).attempt
    for n in range(5):
        await store.add_span(large_span(attempt, n))
    fill(how, folder)
    acknowledged, errors = 5, list[str]()
    while not errors and acknowledged < 2000:  # what SQLite's files have room for is still stored
        errors = await refused(store.add_span(large_span(attempt, acknowledged)))
        acknowledged += not errors
    errors += await refused(store.enqueue_rollout("x" * 100_000))
    errors += await refused(store.add_run(Run(run_id="r", name="x" * 100_000)))
    found: dict[str, Any] = {"acknowledged": acknowledged, "errors": errors}
    found["read_while_full"] = len(await store.query_spans(attempt.rollout_id))
    make_room(how, folder)
    await store.add_span(large_span(attempt, acknowledged))
    await store.enqueue_rollout(2)
    await store.add_run(Run(run_id="r", name="r"))
    found["after"] = len(await store.query_spans(attempt.rollout_id))
    await store.close()
    again = await open_store(uri)
    spans = (await again.query_spans(attempt.rollout_id)).items
    whole = [span for n, span in enumerate(spans) if span.attributes == large_span(attempt, n).attributes]
    found["found_again"] = len(whole)
    found["rollouts"] = (await again.query_rollouts()).total
    found["runs"] = (await again.query_runs()).total
    await again.close()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
