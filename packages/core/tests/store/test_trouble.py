"""What goes wrong around a store: spans of any size, disks that fill up, clocks that go back. Nothing is lost by it."""

import asyncio
import io
import json
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import aiohttp
import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.rollout import RolloutConfig
from leyden.core.data.run import Run
from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.open import open_store
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_contract.shared import RETRY, attempt_now, claimed, rollout_now, span_of, taken

KINDS = ["memory", "sqlite", "postgresql", "redis"]
LARGE = 100 << 20
Clock = Callable[[], float]


@asynccontextmanager
async def opened(
    kind: str, folder: Path, request: pytest.FixtureRequest, clock: Clock
) -> AsyncGenerator[LightningStore]:
    """A store of a kind, which tells the time by `clock`."""
    uri = {"memory": "memory://", "sqlite": f"sqlite:///{folder}/store.db"}.get(kind, "")
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        uri = server.uri_of(server.create())
    elif kind == "redis":
        redis: RedisServer = request.getfixturevalue("redis")
        uri = redis.uri(uuid4().hex)
    store = await open_store(uri, clock=clock)
    try:
        yield store
    finally:
        await store.close()


# --- A span that is too large

COPIES = 7
"""It is counted, cut, encoded, and kept twice: as it was given, and at rest."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_span_of_100_megabytes_is_shortened_in_process(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with opened(kind, tmp_path, request, lambda: 1000.0) as store:
        got = await claimed(store)
        await store.add_span(span_of(got.attempt, "a"))
        large = msgspec.structs.replace(span_of(got.attempt, "b"), attributes={"text": "x" * LARGE})
        others = [span_of(got.attempt, "c"), span_of(got.attempt, "d")]
        tracemalloc.start()
        try:
            stored = await store.add_span(large)
            await store.add_many_spans([others[0], large])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert stored is not None and stored.attributes[semconv.REDUCED] and peak < COPIES * LARGE
        assert 1000 < len(str(stored.attributes["text"])) < LARGE
        await asyncio.gather(*map(store.add_span, [others[1], large]))
        assert [span.span_id[-1] for span in await store.query_spans(got.rollout_id)] == ["a", "b", "c", "d"]


async def test_a_span_of_100_megabytes_is_shortened_over_http(server: StoreServer) -> None:
    behind = MemoryStore()
    url = server.add(behind)
    store = HttpStore(url, TOKEN)
    got = await claimed(store)
    large = msgspec.structs.replace(span_of(got.attempt, "b"), attributes={"text": "x" * LARGE})
    tracemalloc.start()
    try:
        await store.add_many_spans([span_of(got.attempt, "a"), large])
        status, line = await sent_raw(f"{url}/add_span", msgspec.msgpack.encode({"span": large}))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (status, line) == (413, "a request to the store may have at most 67108864 bytes; send fewer spans at once")
    assert peak < 1.5 * COPIES * LARGE  # client and server are in this process
    spans = [span_of(got.attempt, "c"), large, span_of(got.attempt, "d")]
    await asyncio.gather(*map(store.add_span, spans))
    stored = (await store.query_spans(got.rollout_id)).items
    assert [span.span_id[-1] for span in stored] == ["a", "b", "c", "d"]
    assert stored[1].attributes[semconv.REDUCED]
    await store.close()
    await behind.close()


async def sent_raw(url: str, body: bytes) -> tuple[int, str]:
    """Send what our own client would not."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=io.BytesIO(body), headers=headers) as response,
    ):
        return response.status, await response.text()


async def test_spans_of_megabytes_travel(server: StoreServer) -> None:
    behind = MemoryStore()
    store = HttpStore(server.add(behind), TOKEN)
    got = await claimed(store)
    sent = msgspec.structs.replace(span_of(got.attempt, "b"), attributes={"text": "x" * (20 << 20)})
    stored = await store.add_span(sent)
    assert stored is not None and (await store.query_spans(got.rollout_id)).items == [stored]
    await store.close()
    await behind.close()


# --- A disk that is full

FULL = Path(__file__).with_name("full_disk.py")


def on_small_disk(folder: Path) -> list[str]:
    """The beginning of a command that sees a tmpfs of two megabytes at `folder`; skips where that is not allowed."""
    program = shutil.which("unshare")
    if program is None:
        pytest.skip("there is no unshare, so no small file system can be mounted")
    mount = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'
    command = [program, "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no file system can be mounted: {tried.stderr.strip()}")
    return command


@pytest.mark.parametrize("how", ["disk", "limit"])
def test_a_full_disk_is_a_store_error_and_nothing_is_lost(how: str, tmp_path: Path) -> None:
    before = on_small_disk(tmp_path) if how == "disk" else []
    done = subprocess.run(
        [*before, sys.executable, str(FULL), how, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["acknowledged"] >= 5
    for error in found["errors"]:
        assert error.startswith(f"{tmp_path}/store.db: ") and "\n" not in error
    assert {error.partition(": ")[2] for error in found["errors"]} <= {"database or disk is full", "disk I/O error"}
    assert len(found["errors"]) == 3, "a span, a rollout, a run"
    assert found["read_while_full"] == found["acknowledged"]
    assert found["after"] == found["found_again"] == found["acknowledged"] + 1
    assert (found["rollouts"], found["runs"]) == (2, 1)


# --- A clock that goes back


@pytest.mark.parametrize("kind", KINDS)
async def test_a_clock_that_goes_back_loses_no_deadline(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    now = [1000.0]
    config = msgspec.structs.replace(RETRY, timeout_seconds=60.0, unresponsive_seconds=20.0)
    async with opened(kind, tmp_path, request, lambda: now[0]) as store:
        got = await claimed(store, config)
        now[0] = 1010.0
        await store.add_span(span_of(got.attempt, "a"))
        now[0] = 400.0
        for name in "bcd":
            stored = await store.add_span(span_of(got.attempt, name))
            assert stored is not None
        assert (await attempt_now(store, got.attempt)).last_heartbeat_time == 1010.0
        assert (await attempt_now(store, got.attempt)).status == "running"
        later = await claimed(store, config)
        async with asyncio.timeout(10):
            assert await store.dequeue_many_rollouts(timeout=0.05) == []
            assert await store.wait_for_rollouts(rollout_ids=[got.rollout_id], timeout=0.05) == []
        now[0] = 421.0
        assert (await attempt_now(store, later.attempt)).status == "unresponsive"
        assert (await attempt_now(store, got.attempt)).status == "running", "it was heard of at 1010"
        now[0] = 1031.0
        assert (await attempt_now(store, got.attempt)).status == "unresponsive"
        again = [taken(await store.dequeue_rollout()).rollout_id for _ in range(2)]
        assert sorted(again) == sorted([got.rollout_id, later.rollout_id])
        numbers = [(span.sequence_id, span.span_id[-1]) for span in await store.query_spans(got.rollout_id)]
        assert numbers == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_clock_that_goes_back_makes_no_negative_duration(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    now = [1000.0]
    async with opened(kind, tmp_path, request, lambda: now[0]) as store:
        got = await claimed(store, RolloutConfig(timeout_seconds=60.0))
        queued = await store.enqueue_rollout(2)
        await store.add_run(Run(run_id="r", name="r"))
        now[0] = 900.0
        ended = await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        assert ended.end_time == ended.start_time == 1000.0
        rollout = await rollout_now(store, got)
        assert rollout.end_time == rollout.start_time == 1000.0
        cancelled = await store.update_rollout(queued.rollout_id, status="cancelled")
        assert cancelled.end_time == cancelled.start_time
        run = await store.update_run("r", status="succeeded")
        assert run.end_time == run.start_time == run.update_time == 1000.0
        finished = await store.wait_for_rollouts(rollout_ids=[got.rollout_id, queued.rollout_id], timeout=5)
        assert len(finished) == 2
