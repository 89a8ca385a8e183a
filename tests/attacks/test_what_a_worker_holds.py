"""Attacks by an agent in Python that looks for what opens more than its attempt, in the process that runs it."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint, verify
from leyden.core.data.rollout import Attempt, AttemptedRollout
from leyden.core.errors import CallRefused
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.store.http.access import Access, WorkerCaller, machine_name, worker_token
from leyden.core.store.http.client import HttpStore
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.factories import span
from leyden.core.testing.running import error_of
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.testing.store_contract.shared import attempt_now, taken
from leyden.core.trainer.agents import local
from leyden.core.trainer.agents.local import AgentPlan, parent_agents, worker_spec
from leyden.core.trainer.serving.address import RunAddress, open_gateway

PATIENCE_SECONDS = 150.0
SEARCHES = '''
import gc, json, os, sys
from pathlib import Path


def reached():
    """Every text and every bytes object of this process: of its objects, of what they hold, and of all frames."""
    gc.unfreeze()
    seen, found = set(), set()
    waiting = [gc.get_objects(), sys.modules]
    for frame in sys._current_frames().values():
        while frame is not None:
            waiting.append(dict(frame.f_locals))
            frame = frame.f_back
    ours = {id(waiting), id(seen), id(found)}
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, (str, bytes, bytearray, memoryview)):
            found.add(thing if isinstance(thing, str) else bytes(thing))
        elif id(thing) not in seen and id(thing) not in ours:
            seen.add(id(thing))
            waiting.extend(gc.get_referents(thing))
    return found


def of_the_system():
    """What the system says of this process: its environment, its command line and the files that it has open."""
    paths = [Path("/proc/self/environ"), Path("/proc/self/cmdline")]
    paths += [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {path.read_bytes() for path in paths if path.is_file()} | {*os.environ.values(), *sys.argv}


def in_memory(halves):
    """How many of these are anywhere in memory; each comes in two halves, or looking for it would put it there."""
    found = set()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for where, flags in ((words[0], words[1]) for words in maps if words[-1] not in ("[vvar]", "[vsyscall]")):
            begin, end = (int(one, 16) for one in where.split("-"))
            if "r" not in flags or "w" not in flags:
                continue
            try:
                memory.seek(begin)
                piece = memory.read(end - begin)
            except (OSError, OverflowError, ValueError):
                continue
            for number, (first, second) in enumerate(halves):
                at = piece.find(first)
                while at >= 0:
                    if piece.startswith(second, at + len(first)):
                        found.add(number)
                    at = piece.find(first, at + 1)
    return sorted(found)


def search(task):
    halves = [[bytes.fromhex(half) for half in pair] for pair in task["halves"]]
    memory = in_memory(halves)
    found = reached() | of_the_system()
    said = {
        "texts": [one for one in found if isinstance(one, str)],
        "bytes": [one.hex() for one in found if isinstance(one, bytes)],
        "memory": memory,
    }
    Path(task["out"]).write_text(json.dumps(said))
    return "done"
'''
FORGES = """
import json, time
from pathlib import Path

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.tracing.context import current_attempt


def agent(task):
    attempt, ids, end = current_attempt(), Path(task["folder"], "ids"), Path(task["folder"], "end")
    if task["who"] == "victim":
        ids.with_suffix(".new").write_text(json.dumps([attempt.rollout_id, attempt.attempt_id]))
        ids.with_suffix(".new").rename(ids)
        while not end.exists():
            time.sleep(0.05)
        return "honest"
    while not ids.exists():
        time.sleep(0.05)
    for rollout_id, attempt_id in (json.loads(ids.read_text()), (attempt.rollout_id, attempt.attempt_id)):
        named = {"rollout_id": rollout_id, "attempt_id": attempt_id, "trace_id": "a" * 32, "span_id": "b" * 16}
        times = {"start_time": time.time(), "end_time": time.time()}
        reward = {semconv.REWARD_VALUE: 0.75}
        attempt.notes.append(Span(**named, **times, sequence_id=0, name=semconv.REWARD, attributes=reward))
    return "done"
"""


@dataclass
class Site:
    """A run's server, with an attempt that another worker has claimed."""

    store: MemoryStore
    address: RunAddress
    other: Attempt
    folder: Path

    @asynccontextmanager
    async def workers(self, **changes: Any) -> AsyncGenerator[WorkerPool]:
        """A worker that runs the agent that searches."""
        (self.folder / "searches.py").write_text(SEARCHES)
        plan = AgentPlan(agent=f"{self.folder / 'searches.py'}:search", log_file=str(self.folder / "log"), **changes)
        pool = WorkerPool(worker_spec(plan, self.address))
        await pool.start()
        try:
            yield pool
        finally:
            await pool.stop()

    def secrets(self) -> dict[str, bytes]:
        """What no worker may hold, in each of the ways in which it could be written."""
        key = self.address.key
        return {
            "trainer's token": self.address.token.encode(),
            "signing key": key,
            "signing key in hexadecimal": key.hex().encode(),
            "signing key in base64": msgspec.json.encode(key)[1:-2],
        }


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    store, codec = MemoryStore(), ByteCodec()
    engine = ScriptedEngine(lambda request: codec.answer("hi"))
    await store.enqueue_rollout("another's")
    other = taken(await store.dequeue_rollout("worker-other")).attempt
    async with open_gateway(store, ServedPolicy(name="policy", engine=engine, codec=codec)) as (address, _):
        yield Site(store, address, other, tmp_path)
    await engine.close()
    await store.close()


async def found_by_an_agent(site: Site, **changes: Any) -> tuple[dict[str, Any], Attempt]:
    """What an agent finds that looks everywhere, and its attempt."""
    halves = [[one[: len(one) // 2].hex(), one[len(one) // 2 :].hex()] for one in site.secrets().values()]
    out = site.folder / "found.json"
    async with site.workers(**changes):
        rollout = await site.store.enqueue_rollout({"out": str(out), "halves": halves})
        (ended,) = await site.store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=PATIENCE_SECONDS)
        assert isinstance(ended, AttemptedRollout)
        assert ended.status == "succeeded", error_of(ended)
    return json.loads(out.read_text()), ended.attempt


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="the agent looks into /proc")
@pytest.mark.parametrize("isolation", ["shared", "process"])
async def test_an_agent_finds_what_its_worker_holds_and_nothing_that_opens_more(site: Site, isolation: str) -> None:
    """The agent goes through all objects, frames, files and the memory of its process, and tries what it has found."""
    found, own = await found_by_an_agent(site, isolation=isolation)
    assert found["memory"] == [], [list(site.secrets())[number] for number in found["memory"]]
    texts, blobs = set(found["texts"]), {bytes.fromhex(one) for one in found["bytes"]}
    assert len(texts) > 10_000, "the agent has looked"
    everything = b"\0".join([*(text.encode("utf-8", "replace") for text in texts), *blobs])
    for name, secret in site.secrets().items():
        assert secret not in everything, f"the {name} is there"
    access, key = Access(site.address.token), site.address.key
    candidates = texts | {blob.decode("latin-1") for blob in blobs}
    holders = {holder for text in candidates if (holder := access.holder(text))}
    in_the_worker = {WorkerCaller(own.worker_id or "")}  # that an agent finds what is there shows that it looks well
    assert holders == (in_the_worker if isolation == "shared" else set())
    assert {ids for text in candidates if (ids := verify(key, text))} == {(own.rollout_id, own.attempt_id)}
    forged = mint(key, site.other.rollout_id, site.other.attempt_id)
    keys = {*blobs, *(text.encode("utf-8", "replace") for text in texts)} - {b""}
    assert all(mint(one, site.other.rollout_id, site.other.attempt_id) != forged for one in keys)


async def test_a_forked_attempt_writes_nothing_of_another_by_way_of_its_worker(site: Site) -> None:
    """The agent has its attempt's token alone, and has its worker store a reward of another attempt of the worker."""
    (site.folder / "forges.py").write_text(FORGES)
    log = site.folder / "log"
    plan = AgentPlan(agent=f"{site.folder / 'forges.py'}:agent", log_file=str(log), isolation="process", concurrency=2)
    pool = WorkerPool(worker_spec(plan, site.address))
    await pool.start()
    try:
        victim, thief = [
            (await site.store.enqueue_rollout({"who": who, "folder": str(site.folder)})).rollout_id
            for who in ("victim", "thief")
        ]
        await site.store.wait_for_rollouts(rollout_ids=[thief], timeout=PATIENCE_SECONDS)
        (site.folder / "end").touch()
        ended = await site.store.wait_for_rollouts(rollout_ids=[victim, thief], timeout=PATIENCE_SECONDS)
    finally:
        await pool.stop()
    assert [rollout.status for rollout in ended] == ["succeeded"] * 2
    names = {one: [span.name for span in (await site.store.query_spans(one)).items] for one in (victim, thief)}
    assert names == {victim: [semconv.RESULT], thief: [semconv.REWARD, semconv.RESULT]}
    assert "its process sent 1 spans of other attempts" in log.read_text()


async def test_with_its_workers_token_an_agent_changes_nothing_of_another_worker(site: Site) -> None:
    """The agent calls the run's server with the token of its worker: for rewards, ends and claims of other workers."""
    machine = site.address.machine().token
    worker_id = f"{machine_name(machine)}1"
    store, other = HttpStore(f"{site.address.url}/store", worker_token(machine, worker_id), 2.0), site.other
    ids = {"rollout_id": other.rollout_id, "attempt_id": other.attempt_id, "sequence_id": 0}
    reward = span(semconv.REWARD, {semconv.REWARD_VALUE: 1.0}, **ids)
    await site.store.enqueue_rollout("more")
    attacks = [
        store.add_span(reward),
        store.add_many_spans([reward]),
        store.update_attempt(other.rollout_id, other.attempt_id, status="succeeded"),
        store.update_attempt(other.rollout_id, other.attempt_id, worker_id=worker_id),
        store.update_rollout(other.rollout_id, status="requeuing"),
        store.query_spans(other.rollout_id, other.attempt_id),
        store.dequeue_many_rollouts(worker_id="worker-other"),
        store.start_attempt(other.rollout_id, worker_id),
        store.query_runs(),
    ]
    answers = await asyncio.gather(*attacks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [CallRefused] * len(attacks), answers
    await store.close()
    assert len(await site.store.query_spans(other.rollout_id)) == 0
    assert await attempt_now(site.store, other) == other


async def test_the_process_of_a_live_agent_is_given_no_key(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent object in the process that called `Trainer.fit` looks at what the learning process has sent."""
    sent: list[bytes] = []

    def send(descriptor: int, message: dict[str, Any]) -> None:
        sent.append(msgspec.json.encode(message))

    async def closed() -> None:
        return

    monkeypatch.setattr(local, "send_to_parent", send)
    monkeypatch.setattr(local, "_input_closed", closed)
    async with parent_agents(-1, os.getppid())(site.address):
        pass
    said = b"\n".join(sent)
    assert site.address.url.encode() in said
    for name, secret in site.secrets().items():
        assert secret not in said, name
