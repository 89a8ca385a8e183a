"""Attempts in processes of their own, through a real worker, gateway and store."""

import asyncio
import contextlib
import functools
import re
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.rollout import AttemptedRollout, RolloutConfig
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.access import Access, new_machine
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import error_of, rewards_in
from leyden.core.testing.scripted_engine import ScriptedEngine

KEY, ACCESS = bytes(range(32)), Access("opens-the-store")
PATIENCE_SECONDS = 60.0

AGENTS = """
import asyncio, ctypes, os, random, signal, subprocess, sys, time
from pathlib import Path

import httpx
import numpy
from opentelemetry import trace

import leyden.core as agl

CALL = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "hello"}]}
client = httpx.Client(base_url="https://api.openai.com/v1", headers={"Authorization": "Bearer sk-secret"})
seen = []


def run(task):
    seen.append(task)
    return DOES[task["do"]](task)


def calls(task):
    return client.post("/chat/completions", json=CALL).raise_for_status().json()["choices"][0]["message"]["content"]


def raises(task):
    raise ValueError(f"no {task['do']}")


class Blocks:
    def __repr__(self):
        time.sleep(600)


def odd(task):
    numbers = [1]
    numbers.append(numbers)
    agl.emit_message("a\\ud800")
    agl.emit_object({"held": numbers, "large": list(range(400_000)), "float": numpy.float32(0.5)})
    agl.emit_exception(ValueError("b\\ud800"))
    with trace.get_tracer("agent").start_as_current_span("odd \\udc00") as span:
        span.set_attribute("c", numpy.float64(0.5))
    with agl.operation("d\\0e"):
        pass
    return [Blocks(), "f\\ud800", 1 << 70]


def hangs(task):
    with trace.get_tracer("agent").start_as_current_span("done before"):
        pass
    agl.emit_observation(role="user", content="noted before")
    Path(task["marker"]).write_text(str(os.getpid()))
    time.sleep(60)


async def hangs_async(task):
    seen.append(task)
    Path(task["marker"]).write_text(str(os.getpid()))
    try:
        await asyncio.sleep(60)
    finally:
        Path(task["marker"]).write_text("cleaned up")


def leaves_a_process(task):
    if (pid := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    Path(task["marker"]).write_text(str(pid))
    os._exit(9)


def leaves_a_session(task):
    server = subprocess.Popen(["sleep", "600"], start_new_session=True)
    script = "setsid sleep 600 > /dev/null & echo $!"
    orphan = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True).stdout
    Path(task["marker"]).write_text(f"{server.pid} {orphan}")
    return "done"


DOES = {
    "leave a session": leaves_a_session,
    "count": lambda task: len(seen),
    "call": calls,
    "emit": lambda task: agl.emit_reward(0.5),
    "raise": raises,
    "exit": lambda task: sys.exit(3),
    "die": lambda task: os._exit(7),
    "be killed": lambda task: os.kill(os.getpid(), signal.SIGKILL),
    "end the server": lambda task: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(60)),
    "crash": lambda task: ctypes.string_at(0),
    "get a signal without a name": lambda task: os.kill(os.getpid(), signal.SIGRTMIN + 3),
    "end as if all were well": lambda task: os._exit(0),
    "leave a process": leaves_a_process,
    "odd": odd,
    "draw": lambda task: f"{random.random()} {numpy.random.random()}",
    "print": lambda task: print("printed in a process of its own"),
}


def score(task, result):
    return float(len(str(result)))


class Notes(agl.Hook):
    async def on_rollout_start(self, *, agent, runner, rollout):
        self.began = (agent.__name__, rollout.rollout_id)

    async def on_trace_end(self, *, agent, runner, tracer, rollout):
        agl.emit_observation(role="user", content="from a hook")

    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        kept = await runner.store.get_rollout_by_id(rollout.rollout_id)
        said = [agent.__name__, self.began == ("run", rollout.rollout_id), kept.attempt.status, len(spans)]
        Path(rollout.input["marker"]).write_text(str(said))
"""

LEAVES_OPEN = """
import asyncio, threading, time
from pathlib import Path

with open(Path(__file__).with_suffix(".imports"), "a") as file:
    file.write("imported ")
threading.Thread(target=time.sleep, args=(600,), name="started at import", daemon=True).start()
asyncio.run(asyncio.sleep(0))  # as a script may that sets something up
seen = []


def run(task):
    seen.append(task)
    return len(seen)
"""


class Site:
    """A store and a gateway, up, and a way to start workers beside them."""

    def __init__(self, folder: Path, url: str, store: MemoryStore) -> None:
        self.url, self.store = url, store
        self.agents, self.leaves_open, self.log = folder / "agents.py", folder / "open.py", folder / "worker.log"
        self.agents.write_text(AGENTS)
        self.leaves_open.write_text(LEAVES_OPEN)

    @contextlib.asynccontextmanager
    async def worker(self, agent: str, **changes: Any) -> AsyncGenerator[WorkerPool]:
        given: dict[str, Any] = {"store_url": f"{self.url}/store", "gateway_url": self.url}
        pool = WorkerPool(
            WorkerSpec(**given, store_token=new_machine(ACCESS), log_file=str(self.log), agent=agent, **changes)
        )
        await pool.start()
        try:
            yield pool
        finally:
            await pool.stop()

    async def run(self, agent: str, tasks: list[Any], **changes: Any) -> list[AttemptedRollout]:
        """The rollouts of `tasks`, ended."""
        async with self.worker(agent, **changes):
            ids = [(await self.store.enqueue_rollout(task, mode="train")).rollout_id for task in tasks]
            return await self.ended(ids)

    async def ended(self, ids: list[str]) -> list[AttemptedRollout]:
        found = await self.store.wait_for_rollouts(rollout_ids=ids, timeout=PATIENCE_SECONDS)
        ended = {one.rollout_id: one for one in found if isinstance(one, AttemptedRollout)}
        return [ended[rollout_id] for rollout_id in ids]

    async def spans(self, rollout: AttemptedRollout) -> list[Any]:
        return (await self.store.query_spans(rollout.rollout_id)).items

    async def result(self, rollout: AttemptedRollout) -> Any:
        (span,) = [span for span in await self.spans(rollout) if span.name == semconv.RESULT]
        return span.attributes.get(semconv.RESULT)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    began, codec = time.time(), ByteCodec()
    store = MemoryStore(lambda: began)  # in which no time passes: only the worker ends what takes too long
    engine = ScriptedEngine(lambda request: codec.answer("hi"))
    stores = store_app(
        store, authorize=ACCESS.is_trainer, agents=ACCESS.holder, attempt_token=functools.partial(mint, KEY)
    )
    policy = ServedPolicy(name="policy", engine=engine, codec=codec)
    server = GatewayServer(Gateway(store, policy, KEY, mounts={"/store": stores}).app)
    yield Site(tmp_path, await server.start(), store)
    await server.stop()
    await store.close()


quick = pytest.mark.usefixtures("quick_workers")
"""Of tests that are about what becomes of an attempt, and not about how its process comes to be."""


async def marked(marker: Path) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not marker.exists() or not marker.read_text():
            await asyncio.sleep(0.02)
    return marker.read_text()


async def gone(pid: int) -> None:
    """Wait until there is no process `pid`."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)


@quick
async def test_each_attempt_finds_the_agent_as_it_was_imported(site: Site) -> None:
    ended = await site.run(f"{site.agents}:run", [{"do": "count"}] * 12, concurrency=6)
    assert [await site.result(one) for one in ended] == ["1"] * 12
    (worker,) = await site.store.query_workers()
    seen = worker.heartbeat_stats["isolation"]
    assert seen.startswith("each rollout runs in a process of its own, because they would share ")
    assert "agents.py" in seen


@quick
async def test_what_an_attempt_does_there_is_recorded_as_anywhere(site: Site) -> None:
    tasks = [{"do": "call"}, {"do": "emit"}, {"do": "raise"}, {"do": "exit"}, {"do": "print"}]
    called, emitted, raised, left, printed = await site.run(f"{site.agents}:run", tasks, reward=f"{site.agents}:score")
    (call,) = [span for span in await site.spans(called) if semconv.CALL_ID in span.attributes]
    assert call.attempt_id == called.attempt.attempt_id
    assert rewards_in(await site.spans(called)) == [2.0]
    assert rewards_in(await site.spans(emitted)) == [0.5, 4.0]
    assert (raised.attempt.status, error_of(raised)["message"]) == ("failed", "no raise")
    assert any("ValueError" in str(span.attributes.get(semconv.ERROR_TYPE)) for span in await site.spans(raised))
    assert (left.attempt.status, error_of(left)["type"]) == ("failed", "SystemExit")
    assert printed.attempt.status == "succeeded"
    assert "printed in a process of its own" in site.log.read_text()


@quick
async def test_what_an_attempt_leaves_there_may_hold_anything(site: Site) -> None:
    (odd,) = await site.run(f"{site.agents}:run", [{"do": "odd"}])
    assert odd.status == "succeeded"
    spans = {span.name: span for span in await site.spans(odd)}
    assert len(spans) == 6
    assert spans[semconv.MESSAGE].attributes[semconv.CONTENT] == "a\ufffd"
    seen = spans[semconv.OBJECT].attributes
    assert str(seen[semconv.CONTENT]).startswith('{"held": [1, ["\\u2026"]], "large": [0, 1, 2, ')
    assert str(seen[semconv.CONTENT]).endswith(', 399999], "float": 0.5}')
    assert seen[semconv.REDUCED] == [f"{semconv.CONTENT}.held[1]: it contains itself"]
    assert spans[semconv.EXCEPTION].status.description == "b\ufffd"
    assert spans["odd \ufffd"].attributes["c"] == 0.5
    assert "d\ufffde" in spans
    result = spans[semconv.RESULT].attributes
    assert result[semconv.RESULT] == f"['<agents.Blocks>', 'f\ufffd', '{1 << 70}']"
    assert len(result[semconv.REDUCED]) == 3


@quick
async def test_an_attempt_whose_process_ends_says_how(site: Site) -> None:
    died, killed, fine = await site.run(f"{site.agents}:run", [{"do": "die"}, {"do": "be killed"}, {"do": "count"}])
    assert error_of(died) == {
        "kind": "worker",
        "type": "ProcessEnded",
        "message": "the agent's process ended with exit code 7",
    }
    assert error_of(killed)["message"] == "the agent's process was killed by SIGKILL"
    assert (died.status, killed.status, fine.status) == ("failed", "failed", "succeeded")


async def test_a_worker_that_can_fork_no_more_makes_way_for_another(site: Site) -> None:
    async with site.worker(f"{site.agents}:run"):
        lost = await site.store.enqueue_rollout({"do": "end the server"})
        (ended,) = await site.ended([lost.rollout_id])
        assert error_of(ended)["kind"] == "worker"
        config = RolloutConfig(max_attempts=2)
        after = await site.store.enqueue_rollout({"do": "count"}, config=config)
        (ended,) = await site.ended([after.rollout_id])
        assert (ended.status, await site.result(ended)) == ("succeeded", "1")


@quick
@pytest.mark.parametrize(
    ("do", "how"),
    [
        ("crash", "was killed by SIGSEGV"),
        ("get a signal without a name", f"was killed by signal {signal.SIGRTMIN + 3}"),
        ("end as if all were well", "ended with exit code 0"),
    ],
)
async def test_no_end_of_a_process_is_without_its_reason(site: Site, do: str, how: str) -> None:
    (ended,) = await site.run(f"{site.agents}:run", [{"do": do}])
    assert (ended.status, ended.attempt.status) == ("failed", "unresponsive")
    assert error_of(ended) == {"kind": "worker", "type": "ProcessEnded", "message": f"the agent's process {how}"}


@quick
async def test_a_process_that_ends_is_not_waited_for_until_those_that_it_left_end(site: Site, tmp_path: Path) -> None:
    task = {"do": "leave a process", "marker": str(tmp_path / "pid")}
    try:
        (ended,) = await site.run(f"{site.agents}:run", [task])
    finally:
        await gone(int(await marked(tmp_path / "pid")))
    assert error_of(ended)["message"] == "the agent's process ended with exit code 9"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells who is whose child")
async def test_what_an_attempt_leaves_in_another_session_ends_with_the_worker(site: Site, tmp_path: Path) -> None:
    task = {"do": "leave a session", "marker": str(tmp_path / "pids")}
    (ended,) = await site.run(f"{site.agents}:run", [task], isolation="process")
    assert ended.status == "succeeded"
    for pid in (await marked(tmp_path / "pids")).split():
        await gone(int(pid))


async def test_a_timeout_ends_the_process_and_keeps_what_it_left(site: Site, tmp_path: Path) -> None:
    task = {"do": "hang", "marker": str(tmp_path / "pid")}
    async with site.worker(f"{site.agents}:hangs", isolation="process"):
        config = RolloutConfig(timeout_seconds=4.0)
        rollout_id = (await site.store.enqueue_rollout(task, config=config)).rollout_id
        pid = int(await marked(tmp_path / "pid"))
        (ended,) = await site.ended([rollout_id])
        await gone(pid)
    assert (ended.attempt.status, error_of(ended)["message"]) == ("timeout", "no result within 4.0 s")
    names = [span.name for span in await site.spans(ended)]
    assert {"done before", semconv.OBSERVATION, semconv.RESULT} <= set(names)


@pytest.mark.parametrize(
    ("seconds", "limit", "message"),
    [
        (60.0, 4.0, r"no result within 4\.0 s: its process was still importing the agent"),
        pytest.param(
            1.2,
            9.0,
            r"no result within 9\.0 s, of which its process took [1-8]\.\d s to import the agent",
            marks=pytest.mark.long,
        ),
    ],
)
async def test_a_timeout_names_the_import_that_each_process_repeats(
    site: Site, seconds: float, limit: float, message: str
) -> None:
    again = "Path(__file__).with_suffix('.imports').read_text().count('imported') > 1"
    slow = f"if {again}:\n    time.sleep({seconds})"
    site.leaves_open.write_text(f"{LEAVES_OPEN}\n\n{slow}\n\n\ndef hangs(task):\n    time.sleep(60)\n")
    async with site.worker(f"{site.leaves_open}:hangs", isolation="process"):
        config = RolloutConfig(timeout_seconds=limit)
        (ended,) = await site.ended([(await site.store.enqueue_rollout({}, config=config)).rollout_id])
    assert re.fullmatch(message, error_of(ended)["message"])


async def test_an_async_agent_that_is_cancelled_may_clean_up(site: Site, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    async with site.worker(f"{site.agents}:hangs_async"):
        config = RolloutConfig(timeout_seconds=4.0)
        rollout_id = (await site.store.enqueue_rollout({"marker": str(marker)}, config=config)).rollout_id
        (ended,) = await site.ended([rollout_id])
    assert ended.attempt.status == "timeout"
    assert marker.read_text() == "cleaned up"


async def test_a_worker_that_stops_ends_its_processes_and_puts_their_rollouts_back(site: Site, tmp_path: Path) -> None:
    task = {"do": "hang", "marker": str(tmp_path / "pid")}
    async with site.worker(f"{site.agents}:hangs", isolation="process"):
        rollout_id = (await site.store.enqueue_rollout(task)).rollout_id
        pid = int(await marked(tmp_path / "pid"))
    await gone(pid)
    rollout = await site.store.get_rollout_by_id(rollout_id)
    assert rollout is not None and rollout.status == "requeuing"


async def test_no_two_attempts_draw_the_same_random_numbers(site: Site) -> None:
    ended = await site.run(f"{site.agents}:run", [{"do": "draw"}] * 6)
    draws = [draw for one in ended for draw in str(await site.result(one)).split()]
    assert len(set(draws)) == 12


@quick
async def test_hooks_run_in_the_process_of_the_attempt_to_its_very_end(site: Site, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hooks = (f"{site.agents}:Notes",)
    (ended,) = await site.run(f"{site.agents}:run", [{"do": "count", "marker": str(marker)}], hooks=hooks)
    assert marker.read_text() == "['run', True, 'succeeded', 2]"
    first, *_ = await site.spans(ended)
    assert first.attributes.get(semconv.CONTENT) == "from a hook"


async def test_a_module_that_leaves_a_thread_behind_is_imported_by_each_process(site: Site) -> None:
    ended = await site.run(f"{site.leaves_open}:run", [{}] * 3)
    assert [await site.result(one) for one in ended] == ["1"] * 3
    assert site.leaves_open.with_suffix(".imports").read_text().split() == ["imported"] * 4
    (worker,) = await site.store.query_workers()
    assert "1 thread (started at import)" in worker.heartbeat_stats["isolation"]


@quick
async def test_a_proven_agent_shares_one_process_unless_it_is_said_otherwise(site: Site) -> None:
    site.agents.write_text("import os\n\n\ndef run(task):\n    return os.getpid()\n")
    shared = await site.run(f"{site.agents}:run", [{}] * 3)
    assert len({await site.result(one) for one in shared}) == 1
    alone = await site.run(f"{site.agents}:run", [{}] * 3, isolation="process")
    assert len({await site.result(one) for one in alone}) == 3
