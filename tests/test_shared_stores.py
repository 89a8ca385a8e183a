"""Runs that share a store: each sees its own rollouts, learns what it learns alone, and is found by the store's URI."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import safetensors.torch
import torch
from warm_process import Running

import leyden.core as agl
from kill_campaign import kill_with_store
from kills.store_backends import BACKENDS, MISSING
from leyden.core.store.memory import MemoryStore
from leyden.core.store.open import open_store
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.store_location import remember_store

Start = Callable[..., Running]
Leyden = Callable[..., "CompletedProcess[str]"]
Arguments = Callable[..., list[str]]

OUTAGE_SECONDS = 17.0
"""Longer than any store waits for its server by default."""
REWARD = "examples/calculator_langgraph/reward.py:score"

pytestmark = [pytest.mark.timeout(600)]


def kinds(*names: str, campaign: Sequence[str] = ()) -> list[Any]:
    """Parameters: kinds of stores, of which SQLite is in the short tests, and some are only in the campaigns.

    A shard is a SQLite file, too. Each test has some kinds, and each kind several tests, as all of all would take a
    quarter of an hour. In `scripts/kill_campaign.py --store KIND` and `scripts/store_results.py`, every kind does
    everything.
    """
    found: list[Any] = []
    for name in names:
        missing = MISSING[name]() if name in MISSING else None
        marks = [pytest.mark.long] * (name != "sqlite") + [pytest.mark.campaign] * (name in campaign)
        marks.append(pytest.mark.skipif(missing is not None, reason=str(missing)))
        found.append(pytest.param(name, marks=marks))
    return found


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """The URI of an empty store of the wanted kind."""
    if request.param == "shard":
        shards = [{"name": name, "uri": f"sqlite:///{name}.db"} for name in "abc"]
        (tmp_path / "shards.yaml").write_text(json.dumps({"shards": shards}))
        (tmp_path / "shards.yaml").chmod(0o600)
        yield f"shard:///{tmp_path}/shards.yaml"
        return
    with BACKENDS[request.param]() as backend:
        remember_store(backend.uri)
        yield backend.uri


@pytest.fixture(scope="module")
def alone(
    leyden: Leyden, train_arguments: Arguments, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Return the folder of a run of so many steps with a store of its own; trained once."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def train(steps: int) -> Path:
        name = f"of-{steps}-steps"
        done = leyden(*train_arguments(folder, name, "--steps", str(steps), "--deterministic", "--quiet"))
        assert done.returncode == 0, done.stderr
        return folder / name

    return train


def weights(run: Path) -> dict[str, torch.Tensor]:
    library: Any = safetensors.torch
    return library.load_file(run / "policy/model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


async def stored(uri: str) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Rollouts by their queue, and the status of each run by its id."""
    opened = await open_store(uri, clock=lambda: 0.0)
    try:
        queues: dict[str, set[str]] = {}
        for rollout in await opened.query_rollouts():
            queues.setdefault(rollout.queue, set()).add(rollout.rollout_id)
        return queues, {run.run_id: run.status for run in await opened.query_runs()}
    finally:
        await opened.close()


@pytest.mark.parametrize("store", kinds("sqlite", "redis", "http", "shard", campaign=("http", "shard")), indirect=True)
def test_two_runs_at_once_on_one_store_learn_what_each_learns_alone(
    start: Start, alone: Callable[[int], Path], train_arguments: Arguments, store: str, tmp_path: Path
) -> None:
    two = ["--steps", "2", "--deterministic", "--quiet"]
    others = [
        start(*train_arguments(tmp_path, name, *two, "--seed", seed, "--store", store))
        for name, seed in (("one", "0"), ("two", "1"))
    ]
    for other in others:
        done = other.ended(300)
        assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "one", alone(2))
    with pytest.raises(AssertionError):
        assert_same(tmp_path / "two", alone(2))

    queues, runs = asyncio.run(stored(store))
    ids = {name: RunFolder(tmp_path / name).known_run_id() or "" for name in ("one", "two")}
    assert queues.keys() == set(ids.values())
    assert all(name.startswith(f"{queue}.") for queue, names in queues.items() for name in names)
    assert all(len(names) >= 32 for names in queues.values())
    assert runs == dict.fromkeys(ids.values(), "succeeded")
    assert not (tmp_path / "one/store.db").exists()


@pytest.mark.parametrize("store", kinds("postgresql", "shard", campaign=("postgresql",)), indirect=True)
def test_a_run_goes_on_and_is_looked_at_from_the_uri_alone_on_another_machine(
    leyden: Leyden, alone: Callable[[int], Path], train_arguments: Arguments, store: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    begun = train_arguments(here, "calc", "--steps", "2", "--deterministic", "--quiet")
    done = leyden(*begun, "--store", store, "--artifacts", str(tmp_path / "copies"))
    assert done.returncode == 0, done.stderr
    shutil.rmtree(here)

    address, runs = f"{store}#calc", ["--runs", str(there)]
    done = leyden("train", "--resume", address, "--steps", "4", "--quiet", *runs)
    assert done.returncode == 0, done.stderr
    assert_same(there / "calc", alone(4))
    run_id = RunFolder(there / "calc").known_run_id()

    shown = leyden("show", address, *runs)
    assert shown.returncode == 0 and "calc" in shown.stdout, shown.stderr
    why = leyden("why", address, *runs)
    assert why.returncode == 0 and f"{run_id}.train-v0-b0" in why.stdout, why.stderr
    rollout = leyden("show", address, "train-v3", *runs)
    assert "train-v3" in rollout.stdout + rollout.stderr
    models = leyden("models", "list", address, *runs)
    assert models.returncode == 0, models.stderr
    rescored = leyden("rescore", address, "--reward", REWARD, *runs)
    assert rescored.returncode == 0, rescored.stderr
    exported = leyden("export", address, "--to", str(tmp_path / "tables"), *runs)
    assert exported.returncode == 0, exported.stderr

    back = leyden("models", "rollback", address, "3", *runs)
    assert back.returncode == 0, back.stderr
    done = leyden("train", "--resume", address, "--steps", "4", *runs)
    assert done.returncode == 0, done.stderr
    assert f"trained policy: {there}/calc/policy" in done.stdout.replace("\n", "")
    report = RunFolder(there / "calc").report()
    assert report is not None and report.steps == 4
    assert all(token not in line for token in [store.partition("@")[0]] * ("@" in store) for line in shown.stdout)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", kinds("postgresql", "redis", campaign=("redis",)))
def test_a_run_on_a_shared_store_survives_its_driver_its_workers_and_the_stores_server(
    kind: str, tmp_path: Path
) -> None:
    happened, wrong = kill_with_store(kind, tmp_path, 3, 1, lambda: None)
    assert not any(wrong.values()), wrong
    assert happened["drivers killed"] == happened["servers of the store killed"] == happened["workers killed"] == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", kinds("postgresql", "redis", "http", campaign=("redis",)))
def test_neither_a_run_nor_its_agents_notice_an_outage_of_the_stores_server(
    start: Start, train_arguments: Arguments, kind: str, tmp_path: Path
) -> None:
    with BACKENDS[kind]() as backend:
        remember_store(backend.uri)
        run = start(*train_arguments(tmp_path, "calc", "--steps", "3", "--quiet", "--store", backend.uri))
        folder = RunFolder(tmp_path / "calc")
        while not [line for line in folder.metrics() if line["step"] == 1]:
            assert run.returncode is None
            time.sleep(0.1)
        backend.kill()
        time.sleep(OUTAGE_SECONDS)
        backend.start()
        done = run.ended(300)
        assert done.returncode == 0, done.stderr
        failed = asyncio.run(failures(backend.uri))
    report = folder.report()
    assert report is not None
    assert (report.steps, report.failed_rollouts, failed) == (3, 0, [])


async def failures(uri: str) -> list[str]:
    """Why attempts ended that did not succeed."""
    opened = await open_store(uri, clock=lambda: 0.0)
    try:
        attempts = [
            one for rollout in await opened.query_rollouts() for one in await opened.query_attempts(rollout.rollout_id)
        ]
        return [f"{one.status}: {one.metadata.get('error')}" for one in attempts if one.status != "succeeded"]
    finally:
        await opened.close()


def test_a_run_in_memory_learns_and_cannot_go_on(leyden: Leyden, train_arguments: Arguments, tmp_path: Path) -> None:
    done = leyden(*train_arguments(tmp_path, "calc", "--steps", "1", "--quiet", "--store", "memory://"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calc/policy/model.safetensors").exists() and not (tmp_path / "calc/store.db").exists()
    for command in (
        ["train", "--resume", "calc", "--steps", "2"],
        ["why", "calc"],
        ["rescore", "calc", "--reward", REWARD],
    ):
        refused = leyden(*command, "--runs", str(tmp_path))
        assert refused.returncode == 2 and "Traceback" not in refused.stderr, refused.stderr
        assert "memory" in refused.stderr, refused.stderr


def test_a_store_that_cannot_be_opened_ends_the_command_with_one_line(
    leyden: Leyden, train_arguments: Arguments, tmp_path: Path
) -> None:
    for uri, words in (
        ("postgresql://me:hunter2@127.0.0.1:9/db", "no server listens there"),
        ("mongodb://127.0.0.1/db", "not supported"),
        ("runs.db", "is not a store's URI"),
    ):
        refused = leyden(*train_arguments(tmp_path, "calc", "--steps", "1", "--quiet", "--store", uri))
        assert refused.returncode == 2, refused.stderr
        assert words in refused.stderr and "hunter2" not in refused.stderr and "Traceback" not in refused.stderr
        assert not (tmp_path / "calc").exists()


def test_a_live_agent_learns_in_a_store_object_of_its_own_process(tmp_path: Path) -> None:
    def agent(question: str) -> str:
        return question

    def always(task: Any, result: Any) -> float:
        return float(task is not None and result is not None)

    store = MemoryStore()
    trainer = agl.Trainer(
        policy="examples/calculator_langgraph/policy",
        steps=0,
        store=store,
        runs=tmp_path,
        name="calc",
        quiet=True,
        isolation="shared",
    )
    report = trainer.fit(agent, ["1 + 1"], val_dataset=["1 + 1"], reward=always)
    assert report.steps == 0
    queues, runs = asyncio.run(_of(store))
    assert len(queues) == 1 and set(runs.values()) == {"succeeded"}


@pytest.mark.integration
def test_an_agent_of_other_processes_learns_in_a_store_object_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "own_agent.py").write_text(
        "def agent(task):\n    return task\n\ndef score(task, result):\n    return 1.0\n"
    )
    store = MemoryStore()
    trainer = agl.Trainer(
        policy="examples/calculator_langgraph/policy", steps=0, store=store, runs=tmp_path, name="calc", quiet=True
    )
    agent = f"{tmp_path}/own_agent.py"
    report = trainer.fit(f"{agent}:agent", ["1 + 1"], val_dataset=["1 + 1"], reward=f"{agent}:score")
    assert report.steps == 0
    queues, runs = asyncio.run(_of(store))
    assert len(queues) == 1 and set(runs.values()) == {"succeeded"}


async def _of(store: Any) -> tuple[dict[str, int], dict[str, str]]:
    queues: dict[str, int] = {}
    for rollout in await store.query_rollouts():
        queues[rollout.queue] = queues.get(rollout.queue, 0) + 1
    return queues, {run.run_id: run.status for run in await store.query_runs()}
