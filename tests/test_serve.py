"""`leyden serve`: several runs at once, any process of which may be killed; each learns what it learns alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch
from serving import SECONDS, Start, inherited, starting

from leyden.core.server.client import LightningClient, RunHandle
from leyden.core.server.process import RunProcess
from leyden.core.server.records import FOLDER, Records, RunRecord
from leyden.core.server.status import RunStatus
from leyden.core.trainer.run_folder.folder import RunFolder

Leyden = Callable[..., "CompletedProcess[str]"]
Arguments = Callable[..., list[str]]

ROOT = Path(__file__).parents[1]
TOKEN = "a-token-of-the-tests-of-servers"
STEPS = 3
BUDGET = ["--memory", "12GiB", "--cores", "3"]
EXAMPLE = "examples/calculator_langgraph"

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `leyden serve` in the repository's root."""
    environment = {
        **inherited("LEYDEN_RUN_TOKEN", "LEYDEN_STORE"),
        "LEYDEN_SERVER_TOKEN": TOKEN,
        "OMP_NUM_THREADS": "1",
    }
    with starting("serve", ROOT, environment) as begin:
        yield lambda *more: begin("--runs", str(tmp_path / "runs"), *BUDGET, *more)
    for record in Records(tmp_path / "runs").read():  # of a test that failed
        process = None if record.session is None else RunProcess.of(record.session)
        if process is not None:
            process.kill()


@pytest.fixture
def submit(leyden: Leyden, train_arguments: Arguments) -> Callable[..., None]:
    """Submit a run by the command line."""

    def by_command(url: str, name: str, seed: int, *more: str) -> None:
        words = train_arguments(Path("unused"), name, "--steps", str(STEPS), "--deterministic", "--seed", str(seed))
        at = words.index("--runs")
        del words[at : at + 2]
        budget = ["--memory", "3GiB", "--cores", "1"]
        done = leyden(*words, *budget, "--server", url, "--detach", *more, LEYDEN_SERVER_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        assert f"leyden runs follow {name} --server {url}" in done.stdout

    return by_command


@pytest.fixture(scope="module")
def alone(
    leyden: Leyden, train_arguments: Arguments, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], dict[str, torch.Tensor]]:
    """Return the weights of a run that was trained alone, without a server; once for each seed."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def train(seed: int) -> dict[str, torch.Tensor]:
        name = f"alone-{seed}"
        given = ["--steps", str(STEPS), "--deterministic", "--seed", str(seed), "--quiet"]
        done = leyden(*train_arguments(folder, name, *given), timeout=400)
        assert done.returncode == 0, done.stderr
        return weights(folder / name)

    return train


def weights(run: Path) -> dict[str, torch.Tensor]:
    library: Any = safetensors.torch
    return library.load_file(run / "policy/model.safetensors")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def until_step(run: RunHandle, step: int) -> RunStatus:
    while (status := run.status()).step < step:
        assert not status.has_ended, status
        time.sleep(0.2)
    return status


def process_of(runs: Path, name: str) -> int:
    record = msgspec.json.decode((runs / FOLDER / f"{name}.json").read_bytes(), type=RunRecord)
    assert record.session is not None
    return record.session.pid


def stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0 and "Traceback" not in errors, errors


def steps_of(run: Path) -> list[int]:
    return [int(line["step"]) for line in RunFolder(run).metrics() if line["step"] > 0]


def test_three_runs_at_once_each_learn_what_they_learn_alone(
    start: Start, submit: Callable[..., None], alone: Callable[[int], Any], leyden: Leyden, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    process, started = start("--store", f"sqlite:///{tmp_path}/store.db")
    url, client = started["url"], LightningClient(started["url"], TOKEN)
    for seed, name in enumerate(("killed", "resumed", "rolled-back")):
        submit(url, name, seed, "--keep-checkpoints", "9")
    assert {status.state for status in client.runs()} == {"running"}
    killed, resumed, rolled_back = (client.run(name) for name in ("killed", "resumed", "rolled-back"))

    until_step(killed, 1)
    os.kill(process_of(runs, "killed"), signal.SIGKILL)
    until_step(resumed, 1)
    assert resumed.stop().state == "stopped"
    done = leyden("runs", "resume", "resumed", "--server", url, LEYDEN_SERVER_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert rolled_back.wait(timeout=600).state == "finished"
    first = weights(runs / "rolled-back")
    done = leyden("runs", "rollback", "rolled-back", "1", "--server", url, LEYDEN_SERVER_TOKEN=TOKEN)
    assert done.returncode == 0 and "is at version 1" in done.stdout, done.stderr
    assert (rolled_back.status().state, rolled_back.status().step) == ("stopped", 1)
    rolled_back.resume()
    for run in (killed, resumed, rolled_back):
        status = run.wait(timeout=600)
        assert (status.state, status.step) == ("finished", STEPS), status
        assert [one.version for one in run.versions()] == [*range(STEPS + 1)]
        assert steps_of(runs / run.name) == [*range(1, STEPS + 1)]
    stop(process)

    for seed, found in enumerate((weights(runs / "killed"), weights(runs / "resumed"), first)):
        assert_same(found, alone(seed))
    with pytest.raises(AssertionError):
        assert_same(weights(runs / "killed"), weights(runs / "resumed"))


def test_runs_go_on_when_their_server_is_killed_and_when_the_machine_restarts(
    start: Start, submit: Callable[..., None], alone: Callable[[int], Any], tmp_path: Path
) -> None:
    runs, names = tmp_path / "runs", ("one", "two")
    process, started = start()
    client = LightningClient(started["url"], TOKEN)
    for seed, name in enumerate(names):
        submit(started["url"], name, seed)
    before = {name: process_of(runs, name) for name in names}
    process.kill()
    process.wait()
    process, client = started_again(start, names)
    assert {name: process_of(runs, name) for name in names} == before, "the processes of the runs are adopted"

    until_step(client.run("one"), 1)
    process.kill()
    process.wait()
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    process, client = started_again(start, names)
    assert all(process_of(runs, name) != before[name] for name in names)
    for name in names:
        status = client.run(name).wait(timeout=600)
        assert (status.state, status.step) == ("finished", STEPS), status
        assert steps_of(runs / name) == [*range(1, STEPS + 1)]
    stop(process)
    for seed, name in enumerate(names):
        assert_same(weights(runs / name), alone(seed))
    last, started = start()
    client = LightningClient(started["url"], TOKEN)
    assert [status.state for status in client.runs()] == ["finished", "finished"]
    stop(last)


def started_again(start: Start, names: Sequence[str]) -> "tuple[subprocess.Popen[str], LightningClient]":
    """Start a server for the runs of one that was killed, and wait until they run."""
    process, started = start()
    client = LightningClient(started["url"], TOKEN)
    for name in names:
        while (status := client.run(name).status()).state != "running":
            assert not status.has_ended, status
            time.sleep(0.1)
    return process, client


def test_agents_attach_to_a_run_and_stay_over_its_resumption_and_a_restart_of_the_server(
    start: Start, submit: Callable[..., None], alone: Callable[[int], Any], tmp_path: Path, unused_tcp_port: int
) -> None:
    port = ["--port", str(unused_tcp_port)]
    process, started = start(*port)
    url = started["url"]
    submit(url, "apart", 0, "--runners", "remote")
    client = LightningClient(url, TOKEN)
    workers = work_for(url)
    try:
        until_step(client.run("apart"), 1)
        client.run("apart").stop()
        client.run("apart").resume()
        until_step(client.run("apart"), 2)
        process.kill()
        process.wait()
        again, _ = start(*port)
        assert client.run("apart").wait(timeout=600).state == "finished"
        assert workers.wait(SECONDS) == 0, workers.communicate()
    finally:
        workers.kill()
        said = workers.communicate()[0]
    assert "run apart is finished" in said, said
    stop(again)
    assert steps_of(tmp_path / "runs/apart") == [1, 2, 3]
    assert_same(weights(tmp_path / "runs/apart"), alone(0))


def work_for(url: str) -> "subprocess.Popen[str]":
    words = ["run", f"{EXAMPLE}/agent.py:agent", "--reward", f"{EXAMPLE}/reward.py:score", "--server", url]
    environment = {**inherited("LEYDEN_RUN_TOKEN"), "LEYDEN_SERVER_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    pipe, line = subprocess.PIPE, [sys.executable, "-m", "leyden.core.cli", *words]
    return subprocess.Popen(line, cwd=ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)
