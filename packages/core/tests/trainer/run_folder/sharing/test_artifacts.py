"""Artifacts: what another machine gets is the folder of one moment, whatever stopped the writer."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import RunError, UsageError
from leyden.core.trainer.run_folder.sharing.artifacts import (
    LIST,
    Artifacts,
    settled_url,
    url_of_run,
)
from leyden.core.trainer.run_folder.sharing.snapshot import snapshot

RUN = "calc-1a2b"
FSSPEC: Any = import_module("fsspec")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run on one machine."""
    made = tmp_path / "here" / "calc"
    (made / "checkpoints/step-1").mkdir(parents=True)
    (made / "run_id").write_text(f"{RUN}\n")
    (made / "metrics.jsonl").write_text('{"step": 1}\n')
    (made / "checkpoints/step-1/weights").write_bytes(os.urandom(3 << 20))
    (made / "store.db").write_text("of this machine")
    (made / "run.lock").write_text("of this machine")
    (made / "report.json.tmp").write_text("half")
    return made


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where copies go: a local folder, or an object store, for which fsspec's own in memory stands."""
    if request.param == "folder":
        return url_of_run(str(tmp_path / "artifacts"), RUN) or ""
    FSSPEC.filesystem("memory").store.clear()
    return f"memory2://artifacts/{RUN}"


@pytest.fixture(autouse=True)
def another_name_of_memory() -> None:
    """`memory://` is a store's URI; the file system gets a second name."""
    from fsspec.implementations.memory import MemoryFileSystem

    kind: Any = type(
        "Memory2", (MemoryFileSystem,), {"protocol": ("memory2", "memory"), "store": {}, "pseudo_dirs": [""]}
    )
    FSSPEC.register_implementation("memory2", kind, clobber=True)


def put(url: str, folder: Path) -> None:
    """Copy a folder as a run does after a step."""
    with snapshot(folder) as files:
        Artifacts(url).put(files, folder, RUN)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder but those of one machine."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for local in ("store.db", "run.lock", "artifacts_stamp", "report.json.tmp"):
        found.pop(local, None)
    return found


def test_another_machine_gets_the_folder_without_what_belongs_to_one_machine(
    folder: Path, url: str, tmp_path: Path
) -> None:
    put(url, folder)
    got = Artifacts(url).get_below(tmp_path / "there")
    assert got == tmp_path / "there/calc"
    assert files_of(got) == files_of(folder)
    assert not (got / "store.db").exists()
    assert got.stat().st_mode & 0o077 == 0
    assert Artifacts(url).get_below(tmp_path / "there") == got  # it is up to date, and stays


def test_only_what_changed_is_written_and_what_is_gone_is_removed(folder: Path, url: str) -> None:
    put(url, folder)
    fs, root = FSSPEC.core.url_to_fs(url)
    before = {path: fs.info(path) for path in fs.find(root)}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    put(url, folder)
    after = set(fs.find(root))
    assert len(after) == len(before)  # the longer file is written, and the shorter one removed
    assert len(after - before.keys()) == 1
    listing = Artifacts(url).listing()
    put(url, folder)
    assert Artifacts(url).listing() == listing  # nothing changed: the same list


def test_a_copy_has_what_was_there_when_it_began_not_what_was_added_since(
    folder: Path, url: str, tmp_path: Path
) -> None:
    before = files_of(folder)
    with snapshot(folder) as files:
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2}\n')
        (folder / "report.json").write_text("{}")
        (folder / "checkpoints/step-1/weights").unlink()
        Artifacts(url).put(files, folder, RUN)
    assert files_of(Artifacts(url).get_below(tmp_path / "there")) == before
    assert not list(folder.glob(".writing-*"))


def test_a_writer_that_is_stopped_at_any_file_leaves_the_copy_of_before(
    folder: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, folder)
    before = files_of(folder)
    for name in ("a", "b", "c"):
        (folder / name).write_text(name)
    (folder / "metrics.jsonl").write_text('{"step": 7}\n')
    for stop_at in range(5):  # four files and the list
        monkeypatch.setattr(Artifacts, "whole_file", stopped(Artifacts.whole_file, stop_at))
        with pytest.raises(OSError, match="killed"):
            put(url, folder)
        monkeypatch.undo()
        assert files_of(Artifacts(url).get_below(tmp_path / f"there-{stop_at}")) == before
    put(url, folder)
    assert files_of(Artifacts(url).get_below(tmp_path / "there")) == files_of(folder)


def test_a_writer_that_is_stopped_after_the_list_has_not_been_overtaken(
    folder: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, folder)

    def written_then_killed(self: Artifacts, listing: Any) -> None:
        whole(self, listing)
        raise OSError("killed")

    name = "_write_list"
    whole = getattr(Artifacts, name)
    for content in ("a", "b"):
        (folder / "new").write_text(content)
        monkeypatch.setattr(Artifacts, name, written_then_killed)
        with pytest.raises(OSError, match="killed"):
            put(url, folder)
        monkeypatch.undo()
        assert Artifacts(url).get_below(folder.parent) == folder  # it is up to date, and stays
    put(url, folder)
    assert files_of(Artifacts(url).get_below(tmp_path / "there")) == files_of(folder)


def stopped(whole: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Return `whole`, which fails at its call number `at`."""
    left = [at]

    def fail(self: Artifacts, path: str) -> Any:
        if not left[0]:
            raise OSError("killed")
        left[0] -= 1
        return whole(self, path)

    return fail


def test_a_machine_that_was_overtaken_does_not_write_and_its_folder_is_kept_under_another_name(
    folder: Path, url: str, tmp_path: Path
) -> None:
    put(url, folder)
    there = Artifacts(url).get_below(tmp_path / "there")
    (there / "metrics.jsonl").write_text('{"step": 9}\n')
    put(url, there)
    (folder / "metrics.jsonl").write_text('{"step": 2}\n')
    with pytest.raises(RunError, match=r"another machine has continued the run.* leyden train --resume "):
        put(url, folder)
    again = Artifacts(url).get_below(folder.parent)
    assert again == folder
    assert (again / "metrics.jsonl").read_text() == '{"step": 9}\n'
    assert (folder.parent / "calc.older-1/metrics.jsonl").read_text() == '{"step": 2}\n'


def test_a_damaged_or_forged_copy_is_refused(folder: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "artifacts")
    put(url, folder)
    listing = tmp_path / "artifacts" / LIST
    good = listing.read_text()
    for bad, message in (
        (good.replace('"metrics.jsonl"', '"../../metrics.jsonl"'), "outside the run's folder"),
        (good.replace('"name": "calc"', '"name": "../calc"'), "a name that no run can have"),
        ("{", "cannot be read"),
    ):
        listing.write_text(bad)
        with pytest.raises(RunError, match=message):
            Artifacts(url).get_below(tmp_path / "there")
    listing.write_text(good)
    weights = max((tmp_path / "artifacts/objects").rglob("*"), key=lambda path: path.stat().st_size)
    first, *_ = whole = weights.read_bytes()
    weights.write_bytes(bytes([first ^ 1]) + whole[1:])
    with pytest.raises(RunError, match="damaged: weights has changed"):
        Artifacts(url).get_below(tmp_path / "there")
    assert not (tmp_path / "there/calc").exists()


def test_a_folder_of_another_run_stays(folder: Path, url: str, tmp_path: Path) -> None:
    put(url, folder)
    other = tmp_path / "there/calc"
    other.mkdir(parents=True)
    (other / "run_id").write_text("calc-9999\n")
    with pytest.raises(RunError, match=r"is another run than calc-1a2b, .*: give another --runs"):
        Artifacts(url).get_below(tmp_path / "there")
    with pytest.raises(RunError, match=r"there are no artifacts of a run at"):
        Artifacts(f"{url}-none").get_below(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/db", "not a store"),
        ("nothing://x", "cannot be reached: Protocol not known: nothing"),
        ("s3://key:secretsecret@bucket/x", "holds a secret"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_the_run(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settled_url(url)


def test_a_folder_holds_in_every_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settled_url("copies") == str(tmp_path / "copies")
