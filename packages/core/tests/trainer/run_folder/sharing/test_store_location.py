"""Where a run keeps its rollouts: what its folder records of a URI, and who gets the password back."""

from pathlib import Path

import pytest

from leyden.core.errors import RunError, UsageError
from leyden.core.trainer.config import RunConfig, load_config, save_config
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing import store_location
from leyden.core.trainer.run_folder.sharing.store_location import (
    StoreLocation,
    check_same_store,
    recorded_uri,
    remember_store,
    settled_uri,
    usable_uri,
)

FULL = "postgresql://me:hunter2@db:5432/runs"
KEPT = "postgresql://me:***@db:5432/runs"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No URI that another test gave."""
    monkeypatch.setattr(store_location, "_remembered", {})
    monkeypatch.delenv("LEYDEN_STORE", raising=False)


@pytest.mark.parametrize(
    ("uri", "recorded"),
    [
        (FULL, KEPT),
        ("postgresql://me@db/runs", "postgresql://me@db/runs"),
        ("redis://:hunter2@cache:6379/0", "redis://:***@cache:6379/0"),
        ("http://hunter2hunter2@store:8080", "http://***@store:8080"),
        ("sqlite:////data/runs.db", "sqlite:////data/runs.db"),
        ("postgresql://me@db/runs?password=hunter2", "postgresql://me@db/runs?password=***"),
        (
            "postgresql:///runs?host=/run/db&user=me&password=hunter2%23%26more&sslmode=require&sslpassword=hunter2",
            "postgresql:///runs?host=/run/db&user=me&password=***&sslmode=require&sslpassword=***",
        ),
    ],
)
def test_a_runs_folder_keeps_the_place_without_password_or_token(uri: str, recorded: str, tmp_path: Path) -> None:
    save_config(RunConfig(name="calc", policy="p", store=uri), tmp_path / "config.yaml")
    assert "hunter2" not in (tmp_path / "config.yaml").read_text()
    assert load_config(tmp_path / "config.yaml").store == recorded_uri(uri) == recorded


def test_the_password_comes_from_the_variable_or_from_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"are in postgresql://me:\*\*\*@db:5432/runs, .* set LEYDEN_STORE to the URI"):
        usable_uri(KEPT, "calc")
    monkeypatch.setenv("LEYDEN_STORE", "postgresql://me:other@elsewhere/runs")
    with pytest.raises(RunError):
        usable_uri(KEPT, "calc")
    monkeypatch.setenv("LEYDEN_STORE", FULL)
    assert usable_uri(KEPT, "calc") == FULL
    monkeypatch.delenv("LEYDEN_STORE")
    remember_store(FULL)
    assert usable_uri(KEPT, "calc") == FULL
    assert usable_uri("http://***@store:8080", "calc") == "http://***@store:8080"  # LEYDEN_STORE_TOKEN has its token


def test_a_password_among_the_options_comes_from_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "postgresql://me@db/runs?password=hunter2&sslmode=require"
    with pytest.raises(RunError, match="set LEYDEN_STORE to the URI with the password"):
        usable_uri(recorded_uri(given), "calc")
    monkeypatch.setenv("LEYDEN_STORE", given)
    assert usable_uri(recorded_uri(given), "calc") == given
    assert "hunter2" not in f"{StoreLocation(given)} {StoreLocation(given)!r}"


def test_a_store_that_was_an_object_cannot_be_opened_by_its_name() -> None:
    with pytest.raises(RunError, match=r"in a store that was given in Python: leyden.core.store.memory.MemoryStore"):
        usable_uri("<leyden.core.store.memory.MemoryStore>", "calc")
    remember_store("http://token@127.0.0.1:1", "<leyden.core.store.memory.MemoryStore>")
    assert usable_uri("<leyden.core.store.memory.MemoryStore>", "calc") == "http://token@127.0.0.1:1"


def test_a_file_is_the_same_from_every_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settled_uri("sqlite:///runs.db") == f"sqlite:///{tmp_path}/runs.db"
    assert settled_uri(settled_uri("sqlite:///runs.db")) == f"sqlite:///{tmp_path}/runs.db"
    assert settled_uri("shard:///shards.yaml") == f"shard:///{tmp_path}/shards.yaml"
    assert settled_uri("sqlite:////data/runs.db") == "sqlite:////data/runs.db"
    assert settled_uri("redis://cache/0") == "redis://cache/0"


def test_a_run_does_not_move_to_another_store() -> None:
    check_same_store(KEPT, FULL, "calc")
    with pytest.raises(UsageError, match=r"began with the store .*, and cannot move to redis://cache/0"):
        check_same_store(KEPT, "redis://cache/0", "calc")
    with pytest.raises(UsageError, match="keeps its rollouts in its own folder: leave --store out"):
        check_same_store(None, FULL, "calc")


def test_the_runs_of_a_store_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    shared = f"sqlite:///{tmp_path}/shared.db"
    made = [
        RunFolder.create(tmp_path / where, RunConfig(name="calc", policy="p", store=shared), [{"n": 1}], {})
        for where in ("one", "other")
    ]
    one, other = (folder.store_location for folder in made)
    assert one.uri == other.uri == shared
    assert one.queue == made[0].known_run_id() and one.queue != other.queue
    own = RunFolder.create(tmp_path / "own", RunConfig(name="calc", policy="p"), [{"n": 1}], {})
    assert own.store_location == StoreLocation(f"sqlite:///{own.path}/store.db")


async def test_a_place_that_does_not_exist_is_not_made_by_looking(tmp_path: Path) -> None:
    location = StoreLocation(f"sqlite:///{tmp_path}/none.db")
    assert not location.exists and location.is_kept
    assert not StoreLocation("memory://").is_kept
    assert str(StoreLocation(FULL)) == "postgresql://***@db:5432/runs" and "hunter2" not in repr(StoreLocation(FULL))
    await (await location.open()).close()
    assert location.exists
