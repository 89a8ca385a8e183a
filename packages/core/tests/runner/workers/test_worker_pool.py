import asyncio
import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.rollout import RolloutConfig
from leyden.core.errors import AgentNotFound, LeydenError, RewardError, TaskError, UnknownAgent, UsageError
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.user_code.agent_spec import TaskExample
from leyden.core.runner.workers import pool as pool_module
from leyden.core.runner.workers import process
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.access import Access, new_machine
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import error_of, finished, rewards_in
from leyden.core.testing.scripted_engine import ScriptedEngine

KEY = bytes(range(32))
TOKEN = "opens-the-store"
ACCESS = Access(TOKEN)

AGENTS = """
import asyncio, gc, json, os, signal, subprocess, sys, threading, time
from pathlib import Path

import httpx

CALL = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "hello"}]}
client = httpx.AsyncClient(base_url="https://api.openai.com/v1", headers={"Authorization": "Bearer sk-secret"})


def takes_text(question):
    return question

async def asks(task):
    answer = await client.post("/chat/completions", json=CALL)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def looks_around(task):
    print("printed by the agent")
    os.system("echo printed by its child")
    texts = [json.dumps(dict(os.environ)), " ".join(sys.argv), Path("/proc/self/environ").read_bytes().decode()]
    Path(task).write_text(json.dumps({"texts": texts, "input": sys.stdin.read()}))


def looks_at_the_collector(task):
    Path(task).write_text(json.dumps([gc.get_freeze_count(), gc.isenabled(), gc.get_threshold()]))


def dies_once(task):
    marker = Path(task["marker"])
    if not marker.exists():
        child = subprocess.Popen(["sleep", "60"])
        marker.write_text(f"{os.getpid()} {child.pid}.")
        time.sleep(60)
    return "survived"


async def blocks_once(task):
    marker = Path(task["marker"])
    if not marker.exists():
        marker.write_text("blocked")
        time.sleep(60)
    return "survived"


async def ends_its_process(task):
    if task["do"] == "ask":
        await asyncio.sleep(1.0)
        return "asked"
    await asyncio.sleep(0.3)
    os._exit(7) if task["do"] == "exit" else os.kill(os.getpid(), signal.SIGSEGV)


def ends_the_process(task):
    os._exit(7)


async def hangs(task):
    threading.Thread(target=time.sleep, args=(60,)).start()
    await asyncio.sleep(60)


def hangs_in_thread(task):
    time.sleep(60)


number = 3


def leaves_a_session(task):
    command = ["sh", "-c", "sleep 600 & echo $! && wait"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    Path(task["marker"]).write_text(f"{server.pid} {int(server.stdout.readline())}.")


def score(task, result):
    return float(len(result))


def shout(task):
    return {"said": task["said"].upper()}


def says(task):
    return task["said"]


def is_louder(task, result):
    return float(task["said"] != result)


def score_of_one(task):
    return 1.0
"""


class Site:
    """A store and a gateway, up, and a way to start workers beside them."""

    def __init__(self, folder: Path, url: str, store: MemoryStore, engine: ScriptedEngine) -> None:
        self.url, self.store, self.engine = url, store, engine
        self.agents, self.log = folder / "agents.py", folder / "worker.log"
        self.agents.write_text(AGENTS)

    def spec(self, **changes: Any) -> WorkerSpec:
        given: dict[str, Any] = {
            "store_url": f"{self.url}/store",
            "store_token": new_machine(ACCESS),
            "gateway_url": self.url,
            "log_file": str(self.log),
        }
        return WorkerSpec(**{**given, **changes})

    @contextlib.asynccontextmanager
    async def workers(self, agent: str, size: int = 1, **changes: Any) -> AsyncGenerator[WorkerPool]:
        pool = WorkerPool(self.spec(agent=f"{self.agents}:{agent}", **changes), size)
        await pool.start()
        try:
            yield pool
        finally:
            await pool.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    store, codec = MemoryStore(), ByteCodec()
    engine = ScriptedEngine(lambda request: codec.answer("hi"))
    stores = store_app(
        store, authorize=ACCESS.is_trainer, agents=ACCESS.holder, attempt_token=functools.partial(mint, KEY)
    )
    policy = ServedPolicy(name="policy", engine=engine, codec=codec)
    server = GatewayServer(Gateway(store, policy, KEY, mounts={"/store": stores}).app)
    yield Site(tmp_path, await server.start(), store, engine)
    await server.stop()
    await store.close()


quick = pytest.mark.usefixtures("quick_workers")
"""Of tests that start many workers, and are not about what a worker is given or leaves: there it is a new Python."""


async def test_an_agent_of_a_package_is_named_by_its_module(site: Site, tmp_path: Path) -> None:
    package = tmp_path / "packed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "agent.py").write_text("from .words import answer\n\n\ndef agent(task):\n    return answer(task)\n")
    (package / "words.py").write_text("def answer(task):\n    return task['said']\n")
    pool = WorkerPool(site.spec(agent="packed.agent:agent", python_path=(str(tmp_path),)))
    await pool.start()
    try:
        rollout = await site.store.enqueue_rollout({"said": "hi"}, mode="test")
        (ended,) = await finished(site.store, [rollout.rollout_id])
        assert ended.status == "succeeded"
    finally:
        await pool.stop()


async def test_rollouts_run_in_workers_and_their_calls_reach_the_gateway(site: Site) -> None:
    ids = [(await site.store.enqueue_rollout(n, mode="train")).rollout_id for n in range(20)]
    async with site.workers("asks", size=2, reward=f"{site.agents}:score", concurrency=4) as pool:
        ended = await finished(site.store, ids)
        workers = {rollout.attempt.worker_id for rollout in ended}
        assert workers <= set(pool.worker_ids)
        assert len(set(pool.worker_ids)) == 2
    assert {rollout.status for rollout in ended} == {"succeeded"}
    for rollout in ended:
        spans = (await site.store.query_spans(rollout.rollout_id)).items
        (call,) = [span for span in spans if semconv.CALL_ID in span.attributes]
        assert call.attempt_id == rollout.attempt.attempt_id
        assert rewards_in(spans) == [2.0]
    assert len(site.engine.log) == 20


async def test_workers_that_are_started_with_a_trainers_token_need_no_machines(site: Site) -> None:
    rollout = await site.store.enqueue_rollout("task", mode="train")
    async with site.workers("asks", store_token=TOKEN, key=KEY.hex()) as pool:
        (ended,) = await finished(site.store, [rollout.rollout_id])
        assert ended.attempt.worker_id == pool.worker_ids[0]
    assert ended.status == "succeeded", error_of(ended)


async def test_an_agent_finds_no_key_and_its_output_goes_to_the_log(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rollout = await site.store.enqueue_rollout(str(tmp_path / "found.json"))
    async with site.workers("looks_around"):
        (ended,) = await finished(site.store, [rollout.rollout_id])
    assert ended.status == "succeeded"
    found = (tmp_path / "found.json").read_text()
    assert found.endswith('"input": ""}')
    assert KEY.hex() not in found
    assert TOKEN not in found
    log = site.log.read_text()
    assert "printed by the agent" in log
    assert "printed by its child" in log
    assert capfd.readouterr() == ("", "")


async def test_the_collector_leaves_libraries_alone_and_looks_after_agents_as_ever(site: Site, tmp_path: Path) -> None:
    rollout = await site.store.enqueue_rollout(str(tmp_path / "found.json"))
    async with site.workers("looks_at_the_collector"):
        await finished(site.store, [rollout.rollout_id])
    frozen, enabled, thresholds = msgspec.json.decode((tmp_path / "found.json").read_bytes())
    assert frozen > 10_000
    assert enabled
    assert tuple(thresholds) == gc.get_threshold()


async def pids_in(marker: Path) -> tuple[int, int]:
    """The worker, and what its agent has started."""
    while not (marker.exists() and marker.read_text().endswith(".")):
        await asyncio.sleep(0.02)
    worker, child = marker.read_text().rstrip(".").split()
    return int(worker), int(child)


async def test_a_killed_worker_is_replaced_and_its_rollout_tried_again(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marker = tmp_path / "marker"
    config = RolloutConfig(max_attempts=2, retry_condition=("unresponsive",))
    rollout = await site.store.enqueue_rollout({"marker": str(marker)}, config=config)
    async with site.workers("dies_once") as pool:
        before = pool.worker_ids
        worker, child = await asyncio.wait_for(pids_in(marker), 40)
        os.kill(worker, signal.SIGKILL)
        (ended,) = await finished(site.store, [rollout.rollout_id])
        assert ended.status == "succeeded"
        await pool.check()
        assert len(pool.worker_ids) == 1
        assert pool.worker_ids != before
    assert not alive(child), "what the agent had started outlives its worker"
    first, second = await site.store.query_attempts(rollout.rollout_id)
    assert (first.status, second.status) == ("unresponsive", "succeeded")
    assert (first.worker_id, first.metadata["error"]["kind"]) == (before[0], "worker")
    assert "SIGKILL" in first.metadata["error"]["message"]
    assert "SIGKILL" in caplog.text


@quick
@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("exit", "the agent's process ended with exit code 7"),
        ("crash", "the agent's process was killed by SIGSEGV"),
    ],
)
async def test_an_attempt_that_ends_its_process_takes_the_others_with_it_once(
    site: Site, caplog: pytest.LogCaptureFixture, do: str, said: str
) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=("unresponsive",))
    tasks = [{"do": "ask"}, {"do": do}, *[{"do": "ask"}] * 6]
    ids = [(await site.store.enqueue_rollout(task, config=config)).rollout_id for task in tasks]
    async with site.workers("ends_its_process", size=2, concurrency=4) as pool:
        ended = await finished(site.store, ids)
        await pool.check()
    culprit, innocent = ended.pop(1), ended
    assert {rollout.status for rollout in innocent} == {"succeeded"}
    assert culprit.status == "failed"
    assert error_of(culprit) == {"kind": "worker", "type": "ProcessEnded", "message": said}
    first, _ = await site.store.query_attempts(culprit.rollout_id)
    assert "one of them may have ended it" in first.metadata["error"]["message"]
    assert caplog.text.count("from now on each attempt runs in a separate process") == 1


@quick
async def test_an_agent_that_cannot_be_forked_goes_on_sharing_a_process(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site.agents.open("a") as file:
        file.write("\n\nthreading.Thread(target=time.sleep, args=(600,), name='at import', daemon=True).start()\n")
    marker = tmp_path / "marker"
    config = RolloutConfig(max_attempts=2, retry_condition=("unresponsive",))
    rollout = await site.store.enqueue_rollout({"marker": str(marker)}, config=config)
    async with site.workers("dies_once"):
        worker, _ = await asyncio.wait_for(pids_in(marker), 40)
        os.kill(worker, signal.SIGKILL)
        (ended,) = await finished(site.store, [rollout.rollout_id])
        stats = [worker.heartbeat_stats["isolation"] for worker in await site.store.query_workers()]
    assert ended.status == "succeeded"
    assert "attempts still share a process" in caplog.text
    assert "1 thread (at import)" in caplog.text
    assert all("of its own" not in said for said in stats)


async def test_a_worker_whose_loop_is_blocked_is_replaced(site: Site, tmp_path: Path) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=("unresponsive",))
    rollout = await site.store.enqueue_rollout({"marker": str(tmp_path / "marker")}, config=config)
    async with site.workers("blocks_once", stall_seconds=1.5):
        (ended,) = await finished(site.store, [rollout.rollout_id])
    assert (ended.status, ended.attempt.sequence_id) == ("succeeded", 2)
    first, _ = await site.store.query_attempts(rollout.rollout_id)
    assert "blocked" in first.metadata["error"]["message"]


async def test_a_worker_is_not_blamed_for_a_parent_that_is_held_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.1)
    async with site.workers("asks", stall_seconds=1.5) as pool:
        before = pool.worker_ids
        await asyncio.sleep(0.3)
        time.sleep(2.5)
        await asyncio.sleep(0.3)
        assert pool.worker_ids == before


def killed_while_loading(agents: Path, times: int) -> None:
    """Let as many workers be killed before their agent is loaded."""
    marks = f"import os, pathlib\nmarks = pathlib.Path({str(agents.parent)!r})\n"
    kills = f"if len([*marks.glob('*.killed')]) < {times}:\n    (marks / f'{{os.getpid()}}.killed').touch()\n"
    agents.write_text(f"{marks}{kills}    os.kill(os.getpid(), 9)\n{AGENTS}")


@quick
async def test_a_worker_that_is_killed_while_it_starts_is_replaced(site: Site) -> None:
    killed_while_loading(site.agents, 1)
    rollout = await site.store.enqueue_rollout("task")
    async with site.workers("asks"):
        (ended,) = await finished(site.store, [rollout.rollout_id])
    assert ended.status == "succeeded"


@quick
async def test_workers_that_are_always_killed_while_they_start_are_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "SHORT_LIVES", 2)
    killed_while_loading(site.agents, 9)
    pool = WorkerPool(site.spec(agent=f"{site.agents}:asks"))
    with pytest.raises(LeydenError, match="a worker did not start but it was killed by SIGKILL"):
        await pool.start()
    assert len([*site.agents.parent.glob("*.killed")]) == 2
    assert pool.worker_ids == []


@quick
async def test_workers_that_always_die_are_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SHORT_LIVES", 2)
    ids = [(await site.store.enqueue_rollout(n)).rollout_id for n in range(3)]
    async with site.workers("ends_the_process", concurrency=1) as pool:
        ended = await finished(site.store, ids[:2])
        with pytest.raises(
            LeydenError,
            match=("2 workers in a row ended right after their start, the last because it ended with code 7"),
        ):
            for _ in range(500):
                await pool.check()
                await asyncio.sleep(0.02)
    assert {rollout.status for rollout in ended} == {"failed"}
    assert error_of(ended[0])["kind"] == "worker"


@quick
async def test_a_worker_makes_the_agents_input_and_keeps_the_row_for_the_reward(site: Site) -> None:
    rollout = await site.store.enqueue_rollout({"said": "hello"})
    shout, is_louder = f"{site.agents}:shout", f"{site.agents}:is_louder"
    async with site.workers("says", input=shout, reward=is_louder):
        (ended,) = await finished(site.store, [rollout.rollout_id])
    spans = (await site.store.query_spans(rollout.rollout_id)).items
    assert ended.input == {"said": "hello"}
    assert rewards_in(spans) == [1.0]
    assert [span.attributes[semconv.RESULT] for span in spans if span.name == semconv.RESULT] == ["HELLO"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells who is whose child")
async def test_what_an_agent_leaves_in_another_session_ends_with_its_worker(site: Site, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    async with site.workers("leaves_a_session", isolation="shared"):
        rollout = await site.store.enqueue_rollout({"marker": str(marker)})
        await finished(site.store, [rollout.rollout_id])
    for pid in await pids_in(marker):
        assert not alive(pid)


@pytest.mark.parametrize("agent", ["hangs", "hangs_in_thread"])
async def test_a_stop_is_quick_and_puts_unfinished_rollouts_back(site: Site, agent: str) -> None:
    ids = [(await site.store.enqueue_rollout(n)).rollout_id for n in range(3)]
    async with site.workers(agent, concurrency=2):
        while (await site.store.statistics())["total_attempts"] < 2:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 20
    found = await site.store.query_rollouts(rollout_id_in=ids)
    assert sorted(rollout.status for rollout in found) == ["queuing", "requeuing", "requeuing"]
    assert "Traceback" not in site.log.read_text()


@quick
@pytest.mark.parametrize(
    ("field", "value", "kind", "message"),
    [
        ("agent", "nowhere.py:agent", AgentNotFound, "nowhere.py does not exist"),
        ("agent", "{agents}:askz", AgentNotFound, "did you mean asks"),
        ("agent", "{agents}:number", UnknownAgent, "agents.py:number is of type int"),
        ("reward", "{agents}:score_of_one", RewardError, "score_of_one(task) cannot be called as score(task, result)"),
        ("input", "{agents}:score", UsageError, "--input score(task, result) cannot be called with one task"),
        ("hooks", "{agents}:number", UsageError, "agents.py:number is of type int, not a Hook"),
        ("examples", "t.jsonl, line 2", TaskError, "t.jsonl, line 2: the task has the keys frage; takes_text(question"),
        ("key", "not hexadecimal", LeydenError, "a worker could not start: ValueError"),
    ],
)
async def test_what_a_worker_cannot_start_with_is_raised_in_the_parent(
    site: Site, field: str, value: str, kind: type[LeydenError], message: str
) -> None:
    given = value.format(agents=site.agents)
    wrapped: dict[str, Any] = {
        "hooks": (given,),
        "examples": (TaskExample(place="line 1", task={"question": "?"}), TaskExample(place=given, task={"frage": 3})),
    }
    agent = f"{site.agents}:{'takes_text' if field == 'examples' else 'asks'}"
    changes: dict[str, Any] = {"agent": agent, field: wrapped.get(field, given)}
    pool = WorkerPool(site.spec(**changes))
    with pytest.raises(kind) as error:
        await pool.start()
    assert type(error.value) is kind
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert pool.worker_ids == []


PARENT = """
import asyncio, sys
import msgspec
from leyden.core.runner.workers import process
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec

async def main():
    pool = WorkerPool(msgspec.json.decode(sys.stdin.readline(), type=WorkerSpec))
    await pool.start()
    print("started", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_worker_ends_with_its_parent(site: Site, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    await site.store.enqueue_rollout({"marker": str(marker)})
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdin is not None
    parent.stdin.write(msgspec.json.encode(site.spec(agent=f"{site.agents}:dies_once")) + b"\n")
    worker, child = await asyncio.wait_for(pids_in(marker), 40)
    parent.kill()
    await parent.communicate()
    began = time.monotonic()
    while alive(worker) or alive(child):
        assert time.monotonic() - began < 20, "the worker or what its agent started outlives its parent"
        await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
