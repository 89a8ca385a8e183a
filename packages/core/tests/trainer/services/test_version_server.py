"""Serving a version of a run: which weights answer, who may call, and when it ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from leyden.core.cli.main import run
from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.data.route import Route
from leyden.core.errors import PolicyError
from leyden.core.policy.checkpoints.checkpoint import save_checkpoint
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import TinyShape, synthetic_rollouts, tiny_policy
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.models import Models, export_version
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile
from leyden.core.trainer.services.version_server import VersionPlan, plan_policy, serve_version
from leyden.core.trainer.serving.endpoint import ModelEndpoint

IDS = [5, 1, 40, 7, 7, 23, 60, 2, 33, 9]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
KEY = "a-key"
FIELDS: dict[str, Any] = {"created": 1.0, "algorithm": "lightning_rl", "seed": 0}
SECONDS = 30


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, dict[int, list[float]]]:
    """A run of three updates of adapters that kept the last weights.

    Returns its folder, and the log-probabilities of `IDS`
    by version.
    """
    base = tmp_path / "base"
    module: Any = tiny_policy(shape=TinyShape(vocab=400)).module
    module.save_pretrained(base)
    save_tiny_tokenizer(base, TEMPLATE)
    settings = {"lora": {"rank": 3, "alpha": 5.0}, "learning_rate": 1e-2}
    config = RunConfig(name="adapted", agent="a", policy=str(base), algorithm_config=settings)
    folder = RunFolder.create(tmp_path / "runs", config, [{"q": 1}], {})
    updater = Updater(PolicyModel.load(base), UpdateConfig(learning_rate=1e-2, lora=LoraOptions(rank=3, alpha=5.0)))
    scores = {0: score(updater.model, IDS)}
    versions = VersionFile(folder.path)
    versions.append(ModelVersion(version=0, parent=None, policy=str(base), run="adapted", **FIELDS))
    for number in (1, 2, 3):
        updater.step(synthetic_rollouts(4, 400, seed=number))
        saved = save_checkpoint(folder.checkpoints, number, updater, {"step": number})
        weights = None if number == 2 else str(saved.relative_to(folder.path))
        versions.append(
            ModelVersion(version=number, parent=number - 1, policy=str(base), weights=weights, run="adapted", **FIELDS)
        )
        scores[number] = score(updater.model, IDS)
    return folder.path, scores


async def echoed(url: str) -> list[float]:
    """Log-probabilities of `IDS` after the first, as the server computes them."""
    body = {"model": "m", "prompt": IDS, "echo": True, "logprobs": 0, "max_tokens": 0}
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=SECONDS) as http:
        answer = await http.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["logprobs"]["token_logprobs"][1:]


async def served(models: Models, number: int) -> tuple[str, asyncio.Event, asyncio.Task[None]]:
    """Serve a version: its URL, the event that ends it, and its task."""
    version, stopped = models.versions[number], asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    plan = VersionPlan(models=models, version=version, policy=plan_policy(models, version, None), key=KEY)
    task: asyncio.Task[None] = asyncio.create_task(serve_version(plan, ready.set_result, stopped))
    waited: list[asyncio.Future[Any]] = [ready, task]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS)
    if task.done():
        await task
    return ready.result(), stopped, task


@pytest.mark.integration
@pytest.mark.parametrize("number", [0, 3])
async def test_the_weights_of_the_version_answer(trained: tuple[Path, dict[int, list[float]]], number: int) -> None:
    folder, scores = trained
    assert max(abs(a - b) for a, b in zip(scores[0], scores[3], strict=True)) > 0.1

    url, stopped, task = await served(Models.open(folder.parent, "adapted"), number)
    try:
        assert await echoed(url) == pytest.approx(scores[number], abs=1e-4)
    finally:
        stopped.set()
        await task


@pytest.mark.integration
async def test_only_requests_with_the_key_are_answered_and_none_is_recorded(
    trained: tuple[Path, dict[int, list[float]]],
) -> None:
    folder, _ = trained
    url, stopped, task = await served(Models.open(folder.parent, "adapted"), 3)
    try:
        chat = {"model": "m", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 3}
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
            for headers in ({}, {"authorization": "Bearer no"}, {"x-api-key": "no"}, {"x-leyden-attempt": KEY}):
                refused = await http.post("/v1/chat/completions", json=chat, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            hostile = await http.get("/healthz", headers={"host": "attacker.example"})
            assert hostile.status_code == 421
            for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
                answer = await http.post("/v1/chat/completions", json=chat, headers=headers)
                assert answer.json()["usage"]["completion_tokens"] <= 3
            models = await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
            assert [one["id"] for one in models.json()["data"]] == ["adapted:3"]
    finally:
        stopped.set()
        await task
    assert not (folder / "store.db").exists()


@pytest.mark.integration
async def test_the_kept_version_of_a_copied_run_is_read_from_its_own_folder(
    trained: tuple[Path, dict[int, list[float]]], tmp_path: Path
) -> None:
    folder, scores = trained
    models = Models.open(folder.parent, "adapted")
    await export_version(models, models.find("3"), folder / "policy")
    (tmp_path / "base").rename(tmp_path / "elsewhere")

    url, stopped, task = await served(models, 3)
    try:
        assert await echoed(url) == pytest.approx(scores[3], abs=1e-4)
    finally:
        stopped.set()
        await task
    (folder / "policy").rename(folder / "policy-away")
    with pytest.raises(PolicyError, match="base"):
        await served(models, 3)


def test_what_cannot_be_served_is_one_line(
    trained: tuple[Path, dict[int, list[float]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = trained
    runs = folder.parent
    prompts = RunFolder.create(
        runs, RunConfig(name="prompts", agent="a", endpoint=ModelEndpoint(url="http://localhost:1/v1")), [{"q": 1}], {}
    )
    VersionFile(prompts.path).append(
        ModelVersion(version=0, parent=None, edits={"e": PromptEdits()}, run="prompts", **FIELDS)
    )
    routes = (Route(agent="solver", to="solver"),)
    two = RunConfig(name="two", agent="a", policy={"policy": "p", "solver": str(tmp_path / "q")}, routes=routes)
    VersionFile(RunFolder.create(runs, two, [{"q": 1}], {}).path).append(
        ModelVersion(version=0, parent=None, policy={"policy": "p", "solver": str(tmp_path / "q")}, run="two", **FIELDS)
    )
    for arguments, why in (
        (["adapted:2"], "the weights of version 2 of run 'adapted' are not kept"),
        (["adapted:7"], "has no version '7'"),
        (["nothing"], "nothing"),
        (["prompts"], "run 'prompts' trained no policy"),
        (["two"], "choose one with --policy: policy, solver"),
        (["two", "--policy", "critic"], "has no policy 'critic'; it has policy, solver"),
        (["two", "--policy", "solver"], str(tmp_path / "q")),
        (["adapted", "--device", "tpu"], "tpu"),
        (["adapted", "--idle-minutes", "-1"], "idle-minutes"),
    ):
        assert run(["models", "serve", *arguments, "--runs", str(runs), "--port", "0"]) == 2
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1, error


def test_a_policy_without_a_chat_template_is_one_line(
    trained: tuple[Path, dict[int, list[float]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = trained
    for file in (tmp_path / "base").glob("*"):
        if file.name == "tokenizer_config.json":
            config = json.loads(file.read_text())
            config.pop("chat_template", None)
            file.write_text(json.dumps(config))
        elif file.name == "chat_template.jinja":
            file.unlink()

    assert run(["models", "serve", "adapted", "--runs", str(folder.parent), "--port", "0"]) == 2

    error = capsys.readouterr().err
    assert "chat template" in error and error.count("\n") == 1


PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-m", "leyden.core.cli", "models", "serve", *sys.argv[1:], "--parent", str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
print(child.pid, child.stdout.readline(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def parent(trained: tuple[Path, dict[int, list[float]]]) -> Generator[tuple["subprocess.Popen[str]", int]]:
    """A process that has started a server, and the server's process id."""
    command = [sys.executable, "-c", PARENT, "adapted:3", "--json", "--port", "0", "--runs", str(trained[0].parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            child, _, said = process.stdout.readline().partition(" ")
            assert json.loads(said)["model"] == "adapted:3"
            yield process, int(child)
        finally:
            process.kill()


def ends(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.integration
def test_it_ends_with_the_process_that_started_it(parent: tuple["subprocess.Popen[str]", int]) -> None:
    process, child = parent

    os.kill(process.pid, signal.SIGKILL)

    assert ends(child)


@pytest.mark.integration
def test_it_ends_after_some_time_without_a_request(
    trained: tuple[Path, dict[int, list[float]]],
) -> None:
    runs = str(trained[0].parent)
    command = [sys.executable, "-m", "leyden.core.cli", "models", "serve", "adapted", "--runs", runs, "--port", "0"]

    done = subprocess.run(
        [*command, "--idle-minutes", "0.01"], capture_output=True, text=True, timeout=SECONDS, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "adapted:3 is at http://127.0.0.1:" in done.stdout
