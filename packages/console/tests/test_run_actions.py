"""Actions on runs: which command each of them starts, and what is refused before."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from leyden.console.actions.jobs import Jobs
from leyden.console.runs.catalogue import Catalogue
from leyden.console.server import Console
from leyden.core.trainer.run_folder.folder import RunFolder

pytestmark = pytest.mark.integration

ECHO = "import json, sys; print(json.dumps({'arguments': sys.argv[1:]}))"
"""A program in place of `leyden`, whose result is its arguments."""


@pytest.fixture
async def http(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a console whose jobs print their arguments."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    jobs = Jobs([sys.executable, "-c", ECHO])
    app = Console(Catalogue([folder.path.parent]), jobs).application()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://console") as client:
        yield client
    await jobs.close()


async def started(http: httpx.AsyncClient, path: str, body: object) -> dict[str, Any]:
    """Request an action, and return the job at its end."""
    answer = await http.post(f"/api/runs/small/{path}", json=body)
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    for _ in range(200):
        if job["ended"] is not None:
            return job
        await asyncio.sleep(0.05)
        job = (await http.get(f"/api/jobs/{job['id']}")).json()
    raise AssertionError(job)


@pytest.mark.parametrize(
    ("path", "body", "command"),
    [
        ("stop", {}, ["stop", "small"]),
        ("rollback", {"version": 2}, ["models", "rollback", "small", "2"]),
        ("promote", {"version": 0}, ["models", "promote", "small", "0"]),
        ("export", {"version": 2, "folder": "best"}, ["models", "export", "small", "2", "best"]),
        ("resume", {}, ["train", "--resume", "small"]),
    ],
)
async def test_an_action_is_a_command(
    http: httpx.AsyncClient, folder: RunFolder, path: str, body: object, command: list[str]
) -> None:
    job = await started(http, path, body)

    given: list[str] = job["result"]["arguments"]
    assert given[: len(command)] == command
    assert given[len(command) :][:2] == ["--runs", str(folder.path.parent)]
    assert (job["state"], job["subject"]) == ("finished", {"run": "small"})
    assert job["command"].startswith(f"leyden {' '.join(command)} --runs ")


async def test_a_run_like_another_is_launched(http: httpx.AsyncClient, folder: RunFolder) -> None:
    prepared = (await http.get("/api/runs/small/launch")).json()
    settings = yaml.safe_load(prepared["text"])
    assert prepared["name"] == "small-2"
    assert settings["algorithm_config"] == {"learning_rate": 1e-4}
    assert "concurrency" not in settings  # as by default

    body = {"name": "small-2", "text": prepared["text"].replace("0.0001", "0.001"), "check": False}
    job = await started(http, "launch", body)

    given: list[str] = job["result"]["arguments"]
    assert [given[0], *given[3:]] == [
        *("train", "--name", "small-2", "--runs", str(folder.path.parent)),
        *("--json", "--no-check"),
    ]
    assert "0.001" in Path(given[2]).read_text()
    assert job["detached"] is True


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("steps: 2", "steps: two", 3, "the run file: steps: must be a whole number, not text"),
        ("steps: 2", "stps: 2", 3, "the run file: there is no setting stps; did you mean steps?"),
        ("steps: 2", "steps: : 2", 3, "the run file is not YAML: mapping values are not allowed here"),
        ("steps: 2", "steps: -2", 3, "steps must not be negative, got -2"),
        ("learning_rate", "learning_rat", 5, "unknown field `learning_rat`; did you mean learning_rate?"),
        ("tasks: tasks.jsonl\n", "", None, "missing --tasks"),
    ],
)
async def test_a_run_file_that_cannot_work_is_refused_with_its_line_before_a_job_begins(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, line: int, words: str
) -> None:
    """By `leyden train` itself, so that the form refuses what the command refuses."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"question": "?"}\n')
    text = "policy: policy\nagent: module:agent\nsteps: 2\nalgorithm_config:\n  learning_rate: 1e-4\n"
    text += "tasks: tasks.jsonl\n"
    jobs = Jobs()
    app = Console(Catalogue([folder.path.parent]), jobs).application()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://console") as client:
        body = {"name": "next", "text": text.replace(old, new)}
        answer = await client.post("/api/runs/small/launch", json=body)
        assert await jobs.refusal(["train", "--config", str(written(tmp_path, text)), "--validate"]) is None
        listed = (await client.get("/api/jobs")).json()
    await jobs.close()

    assert answer.status_code == 422, answer.text
    assert words in answer.json()["error"]
    assert (answer.json().get("line"), listed) == (line, [])
    assert str(tmp_path) not in answer.json()["error"]


def written(folder: Path, text: str) -> Path:
    """Write a run file."""
    path = folder / "run.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("launch", {"name": "../x", "text": ""}, "may have letters"),
        ("launch", {"name": "small", "text": ""}, "there is a run 'small' already"),
        ("rollback", {"version": "two"}, "not understood"),
        ("rollback", {}, "missing required field `version`"),
        ("export", {"version": 1, "folder": "--json"}, "name the folder"),
        ("export", {"version": 1, "folder": "x", "force": True}, "unknown field `force`"),
    ],
)
async def test_what_cannot_work_starts_nothing(http: httpx.AsyncClient, path: str, body: object, words: str) -> None:
    answer = await http.post(f"/api/runs/small/{path}", json=body)

    assert answer.status_code == 422
    assert words in answer.json()["error"]
    assert (await http.get("/api/jobs")).json() == []


async def test_a_run_that_is_not_there_has_no_actions(http: httpx.AsyncClient) -> None:
    assert (await http.post("/api/runs/nothing/stop", json={})).status_code == 404
