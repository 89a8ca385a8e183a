"""Runs that are read from stores: of every kind, in stores that do not answer, and in stores that come back."""

import asyncio
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from console_runs import made_run
from starlette.testclient import TestClient
from stored_runs import NAMES, record_runs

from leyden.console.runs import catalogue
from leyden.console.runs.catalogue import Catalogue
from leyden.console.runs.run import PAGES
from leyden.console.runs.stored_run import StoredRun, StoreFolder
from leyden.console.server import Console


def listing(client: TestClient) -> dict[str, Any]:
    answer = client.get("/api/runs")
    assert answer.status_code == 200, answer.text
    return answer.json()


@contextmanager
def silent_port() -> Generator[int]:
    """A port that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield server.getsockname()[1]


def test_the_runs_of_a_store_are_listed_with_their_results(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    record_runs(uri, tmp_path / "folders")

    with TestClient(Console(Catalogue([], [uri])).application()) as client:
        runs = {run["key"]: run for run in listing(client)["runs"]}

    assert set(runs) == set(NAMES)
    assert {(run["step"], run["reward"], run["experiment"]) for run in runs.values()} == {(2, 0.5, "first")}
    assert (runs["stored"]["state"], runs["another"]["state"]) == ("finished", "running")
    assert runs["stored"]["held_out"] == [
        {"name": "val", "tasks": None, "is_share": None, "before": 0.25, "after": 0.75}
    ]


def test_a_run_of_a_store_names_its_folder_on_this_machine(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    record_runs(uri, tmp_path / "folders")

    with TestClient(Console(Catalogue([], [uri])).application()) as client:
        here = client.get("/api/runs/stored").json()
        (tmp_path / "folders/stored").rename(tmp_path / "moved")
        gone = client.get("/api/runs/stored").json()

    assert (here["folder"], here["folder_here"]) == (None, str(tmp_path / "folders/stored"))
    assert (gone["folder"], gone["folder_here"]) == (None, None)


def test_a_run_that_goes_on_in_a_store_is_listed_as_it_is_now(tmp_path: Path) -> None:
    from leyden.core.data.run import StepMetrics
    from leyden.core.store.open import open_store

    uri = f"sqlite:///{tmp_path}/shared.db"
    record_runs(uri, tmp_path / "folders")

    async def look() -> tuple[int, int]:
        shown = Catalogue([], [uri])
        writer = await open_store(uri)
        (run,) = [one for one in await writer.query_runs() if one.status == "running"]
        found: list[int] = []
        for _ in range(2):
            found.append(next(one.step for one in (await shown.listing()).runs if one.name == "another"))
            await writer.add_metrics(run.run_id, [StepMetrics(step=7, values={"reward": 1.0})])
            await asyncio.sleep(catalogue.FRESH)
        await writer.close()
        await shown.close()
        return found[0], found[1]

    assert asyncio.run(look()) == (2, 7)


def test_a_store_without_a_file_is_named_and_not_made(tmp_path: Path) -> None:
    made_run(tmp_path / "runs")
    missing = tmp_path / "missing.db"

    with TestClient(Console(Catalogue([tmp_path / "runs"], [f"sqlite:///{missing}"])).application()) as client:
        found = listing(client)

    assert [run["key"] for run in found["runs"]] == ["small"]
    assert [one["error"] for one in found["problems"]] == [f"there is no file {missing}"]
    assert not missing.exists()


@pytest.mark.integration
def test_a_server_that_does_not_answer_hides_no_other_source(tmp_path: Path) -> None:
    made_run(tmp_path / "runs")
    with (
        silent_port() as port,
        TestClient(
            Console(Catalogue([tmp_path / "runs"], [f"http://a-secret@127.0.0.1:{port}"])).application()
        ) as client,
    ):
        began = time.monotonic()
        first = listing(client)
        answer = client.get("/api/runs/nothing")

        assert time.monotonic() - began < 2 * catalogue.STORE_SECONDS + 5
        assert [run["key"] for run in first["runs"]] == ["small"]
        (problem,) = first["problems"]
        assert problem["where"] == f"http://***@127.0.0.1:{port}"
        assert "no complete answer" in problem["error"]
        assert "no run 'nothing' here; http://***@127.0.0.1" in answer.json()["error"]
        assert "a-secret" not in answer.text


def test_a_store_that_came_back_is_read_again(tmp_path: Path) -> None:
    uri, file = f"sqlite:///{tmp_path}/shared.db", tmp_path / "shared.db"

    async def look() -> tuple[str, str, list[str]]:
        source = StoreFolder(uri)
        before = await source.problem(5.0)
        await asyncio.to_thread(record_runs, uri, tmp_path / "folders")
        assert file.exists()
        ends = time.monotonic() + 30
        while (after := await source.problem(5.0)) and time.monotonic() < ends:
            await asyncio.sleep(0.05)
        names = [run.name for run in source.runs.values()]
        await source.close()
        return before, after, names

    before, after, names = asyncio.run(look())

    assert before == f"there is no file {file}"
    assert after == ""
    assert sorted(names) == sorted(NAMES)


def test_callers_of_a_store_that_does_not_open_wait_for_one_attempt(tmp_path: Path) -> None:
    async def look() -> set[str]:
        source = StoreFolder(f"sqlite:///{tmp_path}/nothing/shared.db")
        found = await asyncio.gather(*(source.open() for _ in range(5)), return_exceptions=True)
        assert len({id(one) for one in found}) == 1
        return {str(one) for one in found}

    assert asyncio.run(look()) == {f"there is no file {tmp_path}/nothing/shared.db"}


def test_a_run_has_the_pages_that_can_show_something(tmp_path: Path) -> None:
    source = StoreFolder(f"sqlite:///{tmp_path}/shared.db")
    trained, of_endpoint = {"policy": "policy"}, {"endpoint": {"model": "m"}}

    assert list(StoredRun(source, "a").pages(trained)) == list(PAGES)
    assert set(PAGES) - {*StoredRun(source, "a").pages(of_endpoint)} == {"chat"}
    assert list(StoredRun(source, "").pages({})) == ["rollouts", "health", "bottlenecks"]
