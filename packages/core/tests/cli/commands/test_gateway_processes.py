"""`leyden gateway` with several processes around it: replicas that are killed, and workers of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import cast

import httpx
import numpy as np
import pytest
from gateway_load import Agents, recorded_calls, records_of
from serving import SECONDS, Start, inherited, starting

from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.span import Span
from leyden.core.testing.servers.vllm_double import VllmDouble

pytestmark = pytest.mark.integration

POLICY = Path(__file__).parents[5] / "examples/calculator_langgraph/policy"
TOKEN = "chosen-token"
AGENTS = 8

Serve = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    environment = {**inherited(), "OMP_NUM_THREADS": "1", "LEYDEN_CAPTURE_TOKEN": TOKEN}
    with starting("gateway", tmp_path, environment) as begin:
        yield begin


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a double of vLLM as a process; returns it with its URL."""
    started: list[subprocess.Popen[str]] = []

    def begin(port: int = 0) -> tuple["subprocess.Popen[str]", str]:
        module = "leyden.core.testing.servers.vllm_double"
        command = [sys.executable, "-m", module, "--port", str(port), "--token-seconds", "0.005"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def metrics(url: str) -> list[str]:
    return httpx.get(f"{url}/metrics", timeout=SECONDS).text.splitlines()


def end(process: "subprocess.Popen[str]") -> str:
    """Stop the gateway; returns what it logged."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    return errors


def check_exact(calls: list[Span]) -> None:
    """The recorded log-probabilities are those of the servers."""
    double = VllmDouble()
    for call in calls:
        packed = [
            cast("bytes", call.attributes[key])
            for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.RESPONSE_LOGPROBS)
        ]
        chain = [unpack_ids(packed[0])[-1], *unpack_ids(packed[1])]
        expected = [double.logprobs(last)[token] for last, token in pairwise(chain)]
        assert np.allclose(list(unpack_log_probs(packed[2])), expected, atol=1e-5)


@pytest.mark.parametrize("option", ["--engine-url", "--endpoint"])
async def test_a_kill_of_one_of_two_replicas_loses_and_doubles_no_call(
    option: str, start: Start, serve: Serve, tmp_path: Path
) -> None:
    (killed, first), (_, second) = serve(), serve()
    urls = [f"{url}/v1" for url in (first, second)]
    policy = ["--policy", str(POLICY)] if option == "--engine-url" else []
    process, started = start(*policy, option, urls[0], option, urls[1])
    agents = Agents(started["url"], TOKEN)
    async with agents.at_work(AGENTS):
        await agents.answer_more(40)
        killed.kill()
        killed.wait()
        await agents.answer_more(40)
        serve(int(first.rpartition(":")[2]))
        await agents.answer_more(40)
    log = end(process)
    assert (agents.refused, agents.interrupted) == ([], 0)
    calls = await recorded_calls(tmp_path / "captures.db")
    assert records_of(calls) == dict.fromkeys(agents.answered, 1)
    assert len(calls) == len(agents.answered)
    assert {call.status.code for call in calls} == {"ok"}
    check_exact(calls)
    assert first in log, "the loss is logged"


async def test_a_worker_that_is_killed_is_replaced_and_nothing_acknowledged_is_lost(
    start: Start, serve: Serve, tmp_path: Path
) -> None:
    _, url = serve()
    process, started = start("--endpoint", f"{url}/v1", "--workers", "2")
    workers = workers_of(process)
    assert len(workers) == 2
    agents = Agents(started["url"], TOKEN)
    async with agents.at_work(AGENTS):
        await agents.answer_more(40)
        os.kill(workers[0], signal.SIGKILL)
        await agents.answer_more(40)
        await asyncio.to_thread(wait_until, lambda: "leyden_gateway_workers 2.0" in metrics(started["url"]))
        assert workers[1] in workers_of(process) and len(workers_of(process)) == 2
        await agents.answer_more(40)
    log = end(process)
    assert log == f"A gateway worker (process {workers[0]}) was killed by SIGKILL; another one is started\n"
    assert agents.refused == []
    assert 0 < agents.interrupted <= AGENTS
    calls = await recorded_calls(tmp_path / "captures.db")
    records = records_of(calls)
    assert set(records.values()) == {1}
    assert set(agents.answered) <= set(records)
    assert len(records) <= len(agents.answered) + agents.interrupted
    check_exact(calls)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


async def test_sigterm_under_load_ends_all_workers_and_loses_nothing_acknowledged(
    start: Start, serve: Serve, tmp_path: Path
) -> None:
    _, url = serve()
    process, started = start("--endpoint", f"{url}/v1", "--workers", "2")
    workers = workers_of(process)
    agents = Agents(started["url"], TOKEN)
    async with agents.at_work(AGENTS):
        await agents.answer_more(40)
        assert sum(count > 0 for count in records_of(await recorded_calls(tmp_path / "captures.db")).values()) >= 40
        process.send_signal(signal.SIGTERM)
        # In a thread: an agent that stands still in the middle of a request keeps the gateway from ending in time.
        await asyncio.to_thread(wait_until, lambda: process.poll() is not None)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    records = records_of(await recorded_calls(tmp_path / "captures.db"))
    assert set(agents.answered) <= set(records)
    assert set(records.values()) == {1}


def test_workers_end_with_a_parent_that_is_killed(start: Start, serve: Serve) -> None:
    _, url = serve()
    process, started = start("--endpoint", f"{url}/v1", "--workers", "2")
    workers = workers_of(process)
    process.kill()
    process.wait()

    def is_gone() -> bool:
        with suppress(httpx.TransportError):
            httpx.get(f"{started['url']}/healthz", timeout=1)
            return False
        return not any(Path(f"/proc/{pid}").exists() for pid in workers)

    wait_until(is_gone)


def test_workers_show_one_page_of_metrics(start: Start, serve: Serve) -> None:
    _, url = serve()
    process, started = start("--endpoint", f"{url}/v1", "--workers", "3")
    for _ in range(20):
        assert httpx.get(f"{started['url']}/v1/models", timeout=SECONDS).status_code == 401
    wait_until(lambda: 'leyden_gateway_refused_total{reason="invalid_api_key"} 20.0' in metrics(started["url"]))
    assert "leyden_gateway_workers 3.0" in metrics(started["url"])
    assert end(process) == ""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_servers_that_do_not_answer_are_one_line(
    workers: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEYDEN_CAPTURE_TOKEN", TOKEN)
    options = ["--policy", str(POLICY), "--engine-url", "http://127.0.0.1:9", "--port", "0"]
    assert run(["gateway", *options, "--workers", workers]) == 1
    assert "no server at --engine-url answers" in capfd.readouterr().err.splitlines()[-1]
