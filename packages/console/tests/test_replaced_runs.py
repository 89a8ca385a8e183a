"""A run whose folder was replaced, moved or deleted while the console shows it."""

import asyncio
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from console_runs import add_rollout, made_run, run_apart
from starlette.testclient import TestClient

from leyden.console.rollout_index import RolloutIndex
from leyden.console.runs.catalogue import Catalogue
from leyden.console.runs.folder_run import FolderRun
from leyden.console.server import Console
from leyden.core.errors import RunError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder


def replaced(folder: RunFolder) -> None:
    """Let a new run of one rollout take the place of a run that failed its check, as `leyden train` does."""
    folder.note_failure(RunError("the check failed"))
    config = RunConfig(name=folder.path.name, agent="agent.py:agent", policy="policy", steps=9)
    new = RunFolder.create(folder.path.parent, config, [{"question": "?"}], {})
    new.append_metrics({"step": 1, "reward": 0.75})

    async def stored() -> None:
        store = await new.store_location.open()
        await add_rollout(store, "train-new")
        await store.close()

    run_apart(stored())


def rollouts(client: TestClient) -> list[str]:
    """Ids of all rollouts of the run, as soon as they have been read."""
    found: dict[str, Any] = {}
    for _ in range(100):
        found = client.get("/api/runs/small/rollouts").json()
        if found["total"] and found["indexed"] == found["total"]:
            return found["columns"]["id"]
        time.sleep(0.05)
    raise AssertionError(found)


def test_a_run_that_replaced_another_of_its_name_shows_its_own(folder: RunFolder, console: TestClient) -> None:
    assert len(rollouts(console)) == 5
    before = console.get("/api/runs/small/steps").json()

    replaced(folder)

    assert rollouts(console) == ["train-new"]
    assert console.get("/api/runs/small").json()["steps"] == 9
    query = {"after": 1, "generation": before["generation"]}
    found = console.get("/api/runs/small/steps", params=query).json()
    assert (found["steps"], found["series"]["reward"]) == ([1], [0.75]), "of the new run, from its beginning"
    assert console.get("/api/runs/small/rollouts/train-v0-b0-0-0").status_code == 404


@pytest.mark.integration
def test_an_open_page_gets_the_events_of_the_run_that_replaced_its_own(folder: RunFolder) -> None:
    shown = Console(Catalogue([folder.path.parent]))
    began = time.monotonic()
    shown.is_stopping = lambda: time.monotonic() - began > 3
    timer = threading.Timer(0.8, replaced, [folder])
    timer.start()

    with TestClient(shown.application()) as client:
        lines = client.get("/api/runs/small/events").text.splitlines()
    timer.join()

    changes = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines if '"began"' in line]
    assert (changes[0]["step"], changes[-1]["step"]) == (2, 1)
    assert changes[0]["began"] != changes[-1]["began"]
    assert changes[0]["generation"] != changes[-1]["generation"]


def test_a_run_that_goes_on_is_the_same(folder: RunFolder) -> None:
    async def work() -> None:
        shown = Catalogue([folder.path.parent])
        run = await shown.run("small")
        await run.store()
        folder.append_metrics({"step": 3, "reward": 1.0})
        folder.rewind_metrics(1)
        os.utime(folder.config_file, (1, 1))
        assert run.is_still_there
        assert await shown.run("small") is run
        await shown.close()

    asyncio.run(work())


def test_a_copy_that_was_copied_again_has_its_new_store(folder: RunFolder) -> None:
    async def work() -> None:
        run = FolderRun(folder.path)
        await run.store()
        assert run.is_still_there
        shutil.copy2(folder.store_file, folder.path / "copied")
        (folder.path / "copied").replace(folder.store_file)
        assert not run.is_still_there
        await run.close()

    asyncio.run(work())


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_run_that_is_gone_is_said_to_be_gone(folder: RunFolder, console: TestClient, how: str) -> None:
    assert len(rollouts(console)) == 5
    if how == "moved":
        folder.path.rename(folder.path.with_name("elsewhere"))
    else:
        shutil.rmtree(folder.path)

    for page in ("", "/health", "/rollouts", "/steps", "/events"):
        answer = console.get(f"/api/runs/small{page}")
        expected = f"the run was moved or deleted: {folder.path}"
        assert (answer.status_code, answer.json()["error"]) == (404, expected)
    assert [run["key"] for run in console.get("/api/runs").json()["runs"]] == ["elsewhere"] * (how == "moved")


async def test_the_rollouts_of_a_run_that_is_gone_are_not_looked_for(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    run = FolderRun(folder.path)
    following = asyncio.create_task(RolloutIndex(run).follow())
    await asyncio.sleep(0.1)
    assert not following.done()

    shutil.rmtree(folder.path)
    await asyncio.wait_for(following, 10)
    await run.close()
