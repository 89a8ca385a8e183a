"""Chat with a version: its server, the streamed answer, and what a page gets if there can be none."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from leyden.console.actions.jobs import Jobs
from leyden.console.runs.catalogue import Catalogue
from leyden.console.server import Console
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile
from leyden.core.trainer.serving.endpoint import ModelEndpoint

pytestmark = pytest.mark.integration

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
FIELDS: dict[str, Any] = {"created": 1.0, "algorithm": "lightning_rl", "seed": 0}
ASK: dict[str, Any] = {"version": 0, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
SECONDS = 120


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs `a`, `b` and `c` whose version 0 can be served and whose version 1 is not kept, and one of an endpoint."""
    base = tmp_path / "base"
    module: Any = tiny_policy(shape=TinyShape(vocab=400, context=8192)).module
    module.save_pretrained(base)
    save_tiny_tokenizer(base, TEMPLATE)
    for name in ("a", "b", "c"):
        config = RunConfig(name=name, agent="a", policy=str(base))
        file = VersionFile(RunFolder.create(tmp_path / "runs", config, [{"q": 1}], {}).path)
        for number in (0, 1):
            file.append(ModelVersion(run=name, version=number, parent=None, policy=str(base), **FIELDS))
    endpoint = RunConfig(name="endpoint", agent="a", endpoint=ModelEndpoint(url="http://127.0.0.1:9/v1"))
    folder = RunFolder.create(tmp_path / "runs", endpoint, [{"q": 1}], {})
    VersionFile(folder.path).append(ModelVersion(run="endpoint", version=0, parent=None, endpoint="e", **FIELDS))
    return tmp_path / "runs"


@pytest.fixture
async def jobs() -> AsyncGenerator[Jobs]:
    """The console's jobs."""
    own = Jobs()
    yield own
    await own.close()


@pytest.fixture
async def http(runs: Path, jobs: Jobs) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a console with actions, without the checks of `access`."""
    app = Console(Catalogue([runs]), jobs).application()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:1", timeout=SECONDS
    ) as client:
        yield client


async def sent(http: httpx.AsyncClient, run: str, **changes: Any) -> list[dict[str, Any]]:
    """The lines of the answer to a message."""
    answer = await http.post(f"/api/runs/{run}/chat", json=ASK | changes)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_an_answer_is_streamed_with_its_tokens(http: httpx.AsyncClient, jobs: Jobs, runs: Path) -> None:
    lines = await sent(http, "a")

    assert [line.get("state") for line in lines[:2]] == ["loading", "answering"]
    *parts, end = lines[2:]
    tokens = [token for part in parts for token in part["tokens"]]
    assert 1 <= len(tokens) <= 4
    assert all(isinstance(text, str) and logprob <= 0 for text, logprob in tokens)
    assert end["end"]["prompt_tokens"] > 0
    assert end["end"]["seconds"] >= end["end"]["first_seconds"] > 0
    about = (await http.get("/api/runs/a/chat")).json()
    assert about == {"policies": ["policy"], "served": [{"version": 0, "policy": None, "job": "1"}]}
    job = jobs.job("1")
    assert "models serve a:0" in job.command
    (process,) = served_processes(runs)
    variables = Path(f"/proc/{process}/environ").read_text().split("\0")
    key = next(one.partition("=")[2] for one in variables if one.startswith("LEYDEN_SERVE_KEY="))
    assert len(key) > 20
    assert key not in (await http.get("/api/jobs/1")).text + json.dumps(lines)


async def test_a_message_at_temperature_0_gets_the_same_answer_again(http: httpx.AsyncClient) -> None:
    first, second = [
        [token for line in await sent(http, "a", temperature=0) for token in line.get("tokens", ())] for _ in range(2)
    ]

    assert first == second != []


async def test_at_most_two_versions_are_served(http: httpx.AsyncClient, jobs: Jobs) -> None:
    await asyncio.gather(sent(http, "a"), sent(http, "b"))
    await sent(http, "a")

    lines = await sent(http, "c")

    assert "end" in lines[-1]
    states = {job.title: job.state for job in jobs.listing()}
    assert states == {"serve a:0": "running", "serve b:0": "finished", "serve c:0": "running"}


@pytest.mark.parametrize(
    ("run", "version", "why"),
    [
        ("a", 1, "the weights of version 1 of run 'a' are not kept"),
        ("a", 7, "has no version '7'"),
        ("endpoint", 0, "run 'endpoint' trained no policy"),
    ],
)
async def test_what_cannot_be_served_is_one_sentence(http: httpx.AsyncClient, run: str, version: int, why: str) -> None:
    *_, last = await sent(http, run, version=version)

    assert why in last["error"]
    assert "\n" not in last["error"] and not last["error"].startswith("leyden")


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({"messages": []}, 422, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, 422, "role"),
        ({"temperature": 3}, 422, "temperature"),
        ({"top_p": 0}, 422, "top_p"),
        ({"max_tokens": 0}, 422, "max_tokens"),
        ({"other": 1}, 422, "other"),
    ],
)
async def test_a_wrong_request_is_one_sentence(
    http: httpx.AsyncClient, changes: dict[str, Any], status: int, why: str
) -> None:
    answer = await http.post("/api/runs/a/chat", json=ASK | changes)

    assert answer.status_code == status
    assert why in answer.json()["error"]


async def test_a_server_that_is_killed_is_started_again(http: httpx.AsyncClient, jobs: Jobs, runs: Path) -> None:
    await sent(http, "a")
    (process,) = served_processes(runs)
    os.kill(process, signal.SIGKILL)
    await jobs.ended("1")

    assert "end" in (await sent(http, "a"))[-1]


def served_processes(run: Path) -> list[int]:
    """Processes that serve a version of a run in this folder."""
    found: list[int] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if b"serve" in words and str(run).encode() in words:
                found.append(int(file.parent.name))
    return found


@contextmanager
def console_process(runs: Path, folder: Path) -> Generator[tuple["subprocess.Popen[str]", httpx.Client]]:
    """A console with actions as a process of its own, and a client that has its token."""
    command = [sys.executable, "-m", "leyden.core.cli", "console", "--runs", str(runs), "--port", "0"]
    environment = {**os.environ, "LEYDEN_CONSOLE_TOKEN": "t", "TMPDIR": str(folder)}
    with subprocess.Popen([*command, "--allow-actions"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[4]
            base = address.partition("?")[0]
            with httpx.Client(base_url=base, follow_redirects=True, timeout=SECONDS) as client:
                client.get(address)
                yield process, client
        finally:
            process.kill()


def gone(runs: Path) -> bool:
    """Whether no version of these runs is served any more, as soon as none is loaded."""
    for _ in range(10 * SECONDS):
        if not served_processes(runs):
            return True
        time.sleep(0.1)
    return False


def test_no_server_outlives_a_console_that_is_killed(runs: Path, tmp_path: Path) -> None:
    with console_process(runs, tmp_path) as (process, client):
        assert '"end"' in client.post("/api/runs/a/chat", json=ASK).text
        assert len(served_processes(runs)) == 1
        process.kill()

    assert gone(runs)


def test_no_server_outlives_a_console_that_is_killed_while_the_version_is_loaded(runs: Path, tmp_path: Path) -> None:
    with (
        console_process(runs, tmp_path) as (process, client),
        client.stream("POST", "/api/runs/a/chat", json=ASK) as answer,
    ):
        assert "loading" in next(answer.iter_lines())
        while not served_processes(runs):
            time.sleep(0.05)
        process.kill()

    assert gone(runs)


def test_an_answer_that_its_page_leaves_is_no_longer_generated(runs: Path, tmp_path: Path) -> None:
    with console_process(runs, tmp_path) as (_, client):
        with client.stream("POST", "/api/runs/a/chat", json=ASK | {"max_tokens": 8000}) as answer:
            assert next(line for line in answer.iter_lines() if "tokens" in line)
        (process,) = served_processes(runs)
        variables = Path(f"/proc/{process}/environ").read_text().split("\0")
        key = next(one.partition("=")[2] for one in variables if one.startswith("LEYDEN_SERVE_KEY="))
        (folder,) = tmp_path.glob("leyden-console-*/*/stdout")
        root = json.loads(folder.read_text())["url"].removesuffix("/v1")
        metrics = ""
        for _ in range(50):
            metrics = httpx.get(f"{root}/metrics", headers={"authorization": f"Bearer {key}"}, timeout=SECONDS).text
            if 'status="499"' in metrics:
                break
            time.sleep(0.1)
        assert 'status="499"' in metrics, metrics
