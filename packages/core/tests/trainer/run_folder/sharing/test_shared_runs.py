"""A run by its store: which of several runs is meant, and where its folder is."""

import logging
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.run import Run
from leyden.core.errors import RunError
from leyden.core.store.open import open_store
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.artifact_sync import check_continuing
from leyden.core.trainer.run_folder.sharing.artifacts import Artifacts, url_of_run
from leyden.core.trainer.run_folder.sharing.shared_runs import place_of_run, split_address
from leyden.core.trainer.run_folder.sharing.snapshot import snapshot


async def recorded(store: str, folder: RunFolder, name: str = "calc", **metadata: Any) -> str:
    """Record a run as its trainer does, and return its id."""
    run_id = folder.run_id(name)
    opened = await open_store(store)
    try:
        place = {**place_of_run(folder.path, None), **metadata}
        await opened.add_run(Run(run_id=run_id, name=name, metadata=place))
    finally:
        await opened.close()
    return run_id


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shared.db"


def made(runs: Path, store: str, name: str = "calc") -> RunFolder:
    return RunFolder.create(runs, RunConfig(name=name, policy="p", store=store), [{"n": 1}], {})


async def test_a_run_is_opened_by_name_or_id_wherever_its_folder_is_here(tmp_path: Path, store: str) -> None:
    folder = made(tmp_path / "trained", store)
    run_id = await recorded(store, folder)
    for name in (f"{store}#calc", f"{store}#{run_id}", store):
        opened, config = await in_thread(tmp_path / "elsewhere", name)
        assert opened.path == folder.path and config.store == store


async def test_a_folder_of_the_same_name_here_is_not_the_run(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "trained", store)
    await recorded(store, folder)
    made(tmp_path / "here", store)
    monkeypatch.chdir(tmp_path / "here")
    opened, _ = await in_thread(Path("runs"), f"{store}#calc")
    assert opened.path == folder.path


async def in_thread(runs: Path, name: str) -> tuple[RunFolder, RunConfig]:
    import asyncio

    return await asyncio.to_thread(RunFolder.open, runs, name)


async def test_of_several_runs_one_must_be_named(tmp_path: Path, store: str) -> None:
    ids = [await recorded(store, made(tmp_path / where, store)) for where in ("a", "b")]
    ids.append(await recorded(store, made(tmp_path / "c", store, "other"), "other"))
    with pytest.raises(RunError, match=f"has 3 runs; name one as {store}#RUN: ") as raised:
        await in_thread(tmp_path, store)
    assert all(run_id in str(raised.value) for run_id in ids)
    with pytest.raises(RunError, match=f"several runs of {store} are called 'calc'; name one"):
        await in_thread(tmp_path, f"{store}#calc")
    with pytest.raises(RunError, match=f"no run of {store} is called 'none'; runs there: "):
        await in_thread(tmp_path, f"{store}#none")
    opened, _ = await in_thread(tmp_path, f"{store}#other")
    assert opened.path == tmp_path / "c/other"


async def test_the_runs_beyond_the_first_ones_are_listed_by_another_command(tmp_path: Path, store: str) -> None:
    opened = await open_store(store)
    for number in range(7):
        await opened.add_run(Run(run_id=f"calc-{number}", name="calc", start_time=1.0 + number))
    await opened.close()
    with pytest.raises(RunError, match=rf"calc-6, .*calc-2 and 2 older ones, which `leyden show {store}` lists"):
        await in_thread(tmp_path, store)


async def test_a_folder_on_another_machine_is_named_with_what_to_do(tmp_path: Path, store: str) -> None:
    folder = made(tmp_path / "trained", store)
    await recorded(store, folder)
    shutil.rmtree(folder.path)
    message = f"is {folder.path} on {socket.gethostname()}, and not on this machine: copy it into .* --artifacts"
    with pytest.raises(RunError, match=message):
        await in_thread(tmp_path / "runs", f"{store}#calc")


async def test_a_folder_comes_from_its_artifacts(tmp_path: Path, store: str) -> None:
    folder = made(tmp_path / "trained", store)
    url = url_of_run(str(tmp_path / "copies"), folder.run_id("calc"))
    assert url is not None
    await recorded(store, folder, artifacts=url)
    with snapshot(folder.path) as files:
        Artifacts(url).put(files, folder.path, folder.run_id("calc"))
    tasks = folder.tasks()
    shutil.rmtree(folder.path)
    opened, config = await in_thread(tmp_path / "runs", f"{store}#calc")
    assert opened.path == tmp_path / "runs/calc" and opened.tasks() == tasks and config.store == store
    assert (await in_thread(tmp_path / "more", f"file://{url}"))[0].tasks() == tasks  # the copy alone names a run, too


class Copied:
    """A run with a copy at its artifacts. Its second machine has the folder `there`, its first one `folder`."""

    def __init__(self, tmp_path: Path, store: str) -> None:
        self.folder = made(tmp_path / "runs", store)
        self.run_id, self.artifacts = self.folder.run_id("calc"), str(tmp_path / "the copies")
        self.url = url_of_run(self.artifacts, self.run_id) or ""
        self.there = tmp_path / "there"
        self.copy(self.folder.path)

    def copy(self, folder: Path) -> None:
        with snapshot(folder) as files:
            Artifacts(self.url).put(files, folder, self.run_id)

    def continue_there(self) -> RunFolder:
        """Take a step on the other machine."""
        other = RunFolder(Artifacts(self.url).get_below(self.there))
        other.append_metrics({"step": 1})
        self.copy(other.path)
        return other


@pytest.mark.parametrize("trained_at", ["there", "runs"])
async def test_a_folder_that_another_machine_has_overtaken_is_renamed_and_the_newer_one_copied(
    tmp_path: Path, store: str, trained_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Copied(tmp_path, store)
    run.continue_there()
    await recorded(store, RunFolder(tmp_path / trained_at / "calc"), artifacts=run.url)
    shutil.rmtree(run.there)
    with caplog.at_level(logging.WARNING):
        opened, _ = await in_thread(tmp_path / "runs", f"{store}#calc")
    assert opened.path == run.folder.path and [line["step"] for line in opened.metrics()] == [1]
    assert RunFolder(tmp_path / "runs/calc.older-1").metrics() == []
    assert "its older folder here is now" in caplog.text
    again, _ = await in_thread(tmp_path / "runs", f"{store}#calc")
    assert again.path == opened.path and not (tmp_path / "runs/calc.older-2").exists()
    check_continuing(opened, run.artifacts)  # the run can go on here


async def test_of_two_folders_on_this_machine_the_one_that_was_trained_last_is_used(tmp_path: Path, store: str) -> None:
    run = Copied(tmp_path, store)
    other = run.continue_there()
    await recorded(store, other, artifacts=run.url)
    other.append_metrics({"step": 2})  # not copied yet
    opened, _ = await in_thread(tmp_path / "runs", f"{store}#calc")
    assert opened.path == other.path and not (tmp_path / "runs/calc.older-1").exists()


async def test_an_older_folder_that_a_process_trains_stays(tmp_path: Path, store: str) -> None:
    run = Copied(tmp_path, store)
    await recorded(store, run.continue_there(), artifacts=run.url)
    shutil.rmtree(run.there)
    with run.folder.locked():
        opened, _ = await in_thread(tmp_path / "runs", f"{store}#calc")
        assert opened.path == run.folder.path and opened.metrics() == []
        with pytest.raises(RunError, match=r"a process still trains the older folder .*: stop it first"):
            Artifacts(run.url).get_below(tmp_path / "runs")


async def test_without_its_artifacts_a_folder_is_used_with_a_warning(
    tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Copied(tmp_path, store)
    await recorded(store, run.folder, artifacts=run.url)
    (Path(run.url) / "run.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        opened, _ = await in_thread(tmp_path / "runs", f"{store}#calc")
    assert opened.path == run.folder.path
    assert "another machine may have continued the run since: the artifacts at" in caplog.text


async def test_the_command_that_a_refusal_names_continues_the_run(tmp_path: Path, store: str) -> None:
    run = Copied(tmp_path, store)
    run.continue_there()
    with pytest.raises(RunError, match="another machine has continued the run since") as raised:
        check_continuing(run.folder, run.artifacts)
    *_, named = shlex.split(str(raised.value))
    opened, _ = await in_thread(tmp_path / "runs", named)
    assert opened.path == run.folder.path and [line["step"] for line in opened.metrics()] == [1]
    check_continuing(opened, run.artifacts)


async def test_a_store_without_runs_or_of_an_older_version_says_so(tmp_path: Path, store: str) -> None:
    with pytest.raises(RunError, match=f"there is no store {store}"):
        await in_thread(tmp_path, f"{store}#calc")
    await (await open_store(store)).close()
    with pytest.raises(RunError, match=f"there is no run in {store}"):
        await in_thread(tmp_path, store)
    opened = await open_store(store)
    await opened.add_run(Run(run_id="calc-1", name="calc"))
    await opened.close()
    with pytest.raises(RunError, match="does not say where the run's folder is"):
        await in_thread(tmp_path, store)


def test_the_last_hash_sign_divides_an_address() -> None:
    assert split_address("redis://cache/0#calc") == ("redis://cache/0", "calc")
    assert split_address("redis://cache/0") == ("redis://cache/0", "")
