"""A folder with a thousand runs: what is listed, and what a later list has of what has changed since."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from leyden.console.runs import catalogue
from leyden.console.runs.catalogue import Catalogue, Listing
from leyden.console.runs.run import RunItem
from leyden.core.errors import RunError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport

RUNS = 1_000


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs; the last one was written last."""
    place = tmp_path / "runs"
    config = RunConfig(name="pattern", agent="agent.py:agent", policy="policy", tasks="tasks.jsonl", steps=9)
    pattern = RunFolder.create(tmp_path, config, [], {})
    text = pattern.config_file.read_text()
    place.mkdir()
    for number in range(RUNS):
        run = RunFolder(place / f"run-{number}")
        run.path.mkdir()
        run.config_file.write_text(text.replace("name: pattern", f"name: run-{number}"))
        run.metrics_file.write_text(f'{{"step":{number % 9},"reward":{number / RUNS}}}\n')
        os.utime(run.metrics_file, (1 + number, 1 + number))
        if number % 3 == 0:
            run.write_report(RunReport(name=f"run-{number}", seed=0, steps=9, seconds=1.0))
        elif number % 3 == 1:
            run.note_failure(RunError("no tasks"))
    return place


def looked_at(folders: list[Path], work: Callable[[Catalogue], Awaitable[None]]) -> None:
    """Run `work` with a catalogue of the runs in these folders."""

    async def run() -> None:
        shown = Catalogue(folders)
        await work(shown)
        await shown.close()

    asyncio.run(run())


def test_a_thousand_runs_are_listed_with_their_states_the_newest_first(runs: Path) -> None:
    async def work(shown: Catalogue) -> None:
        found = await shown.listing()
        assert found.problems == []
        assert [run.key for run in found.runs] == [f"run-{number}" for number in reversed(range(RUNS))]
        states = ("finished", "ended before its first step", "not finished")
        assert {run.state == states[int(run.key[4:]) % 3] for run in found.runs} == {True}
        assert {(run.step, run.reward) == (int(run.key[4:]) % 9, int(run.key[4:]) / RUNS) for run in found.runs} == {
            True
        }

    looked_at([runs], work)


def test_a_later_list_has_what_has_changed_and_nothing_that_is_gone(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "FRESH", 0.0)

    async def work(shown: Catalogue) -> None:
        before = _by_key(await shown.listing())
        RunFolder(runs / "run-2").append_metrics({"step": 8, "reward": 0.75})
        shutil.rmtree(runs / "run-5")
        (runs / "run-8").rename(runs / "renamed")
        (runs / "run-11/config.yaml").write_text("name: 2026-13-99")
        with RunFolder(runs / "run-14").locked():
            found = await shown.listing()
        after = _by_key(found)
        assert after.keys() == before.keys() - {"run-5", "run-8", "run-11"} | {"renamed"}
        changed = {key for key in after.keys() & before.keys() if after[key] != before[key]}
        assert changed == {"run-2", "run-14"}
        assert (after["run-2"].step, after["run-2"].reward, after["run-14"].state) == (8, 0.75, "running")
        (problem,) = found.problems
        assert "run-11/config.yaml cannot be read" in problem.error

    looked_at([runs], work)


def test_lists_that_are_requested_at_once_have_all_runs(runs: Path) -> None:
    async def work(shown: Catalogue) -> None:
        lists = await asyncio.gather(*(shown.listing() for _ in range(4)))
        assert [len(found.runs) for found in lists] == [RUNS] * 4

    looked_at([runs, runs], work)


def _by_key(found: Listing) -> dict[str, RunItem]:
    return {run.key: run for run in found.runs}
