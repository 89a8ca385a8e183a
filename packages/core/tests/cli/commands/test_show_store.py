"""`leyden show URI`: the runs of a store."""

import asyncio
import json
from pathlib import Path

import pytest

from leyden.core.cli.main import run
from leyden.core.data.run import Run
from leyden.core.store.open import open_store


async def fill(uri: str, count: int) -> None:
    store = await open_store(uri)
    for number in range(count):
        metadata = {"host": f"machine-{number}"}
        await store.add_run(Run(run_id=f"calc-{number}", name="calc", start_time=1.0 + number, metadata=metadata))
    await store.update_run("calc-1", status="succeeded", experiment="[bold]x")
    await store.update_run("calc-2", status="failed")
    await store.close()


def test_the_runs_of_a_store_are_listed_with_their_states_the_newest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    uri = f"sqlite:///{tmp_path}/shared.db"
    asyncio.run(fill(uri, 60))
    assert run(["show", uri]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "calc-" in line]
    assert [words[1] for words in lines] == [f"calc-{number}" for number in reversed(range(60))]
    assert lines[58][3:6:2] == ["[bold]x", "finished"] and "failed" in lines[57] and "running" in lines[56]
    assert all(f"machine-{number}" in lines[59 - number] for number in range(60))

    assert run(["show", uri, "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["run_id"], one["status"]) for one in shown[-2:]] == [("calc-1", "succeeded"), ("calc-0", "running")]


def test_a_rollout_of_one_of_several_runs_needs_the_runs_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    asyncio.run(fill(uri, 3))
    assert run(["show", uri, "r-1"]) == 2
    assert f"has 3 runs; name one as {uri}#RUN: calc-2, calc-1, calc-0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "message"), [("sqlite:///none.db", "there is no store"), ("memory://", "keeps no run")]
)
def test_a_store_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, uri: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["show", uri]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
