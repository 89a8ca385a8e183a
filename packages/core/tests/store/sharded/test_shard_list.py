"""The file that lists the shards: what is refused, with which line, and how a change is noticed."""

import logging
from pathlib import Path

import pytest

from leyden.core.errors import UsageError
from leyden.core.store.open import open_store
from leyden.core.store.sharded import shard_list
from leyden.core.store.sharded.shard_list import ShardList
from leyden.core.testing.shard_lists import in_sqlite, write_list

A = "{name: a, uri: 'sqlite:///a.db'}"
BAD = {
    "shards: [": "is not YAML or JSON",
    "[]": "is not a list of shards: Expected `object`, got `array`",
    "shards: []": "lists no shard",
    "shards: [{name: a}]": "is not a list of shards: Object missing required field `uri` - at `$.shards[0]`",
    "shards: [{name: a, uri: 'sqlite:///a.db', sate: draining}]": "unknown field `sate`",
    "shards: [{name: a, uri: 'sqlite:///a.db', state: gone}]": "Invalid enum value 'gone' - at `$.shards[0].state`",
    "shards: [{name: 'a b', uri: 'sqlite:///a.db'}]": "shard 'a b' in .* has an invalid name",
    "shards: [{name: a, uri: 'memory://'}]": "has the URI 'memory://'; a shard can be sqlite://",
    "shards: [{name: a, uri: 'http://secret@host'}]": "has the URI 'http://host'",
    f"shards: [{A}, {A}]": "lists two shards with the name a",
    f"shards: [{A}, {{name: b, uri: 'sqlite:///a.db'}}]": "lists two shards with the URI sqlite:////",
    "shards: [{name: a, uri: 'sqlite:///a.db', state: draining}]": "all shards in .* are draining",
}


@pytest.mark.parametrize("text", BAD)
async def test_an_unusable_list_is_refused_with_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "shards.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=BAD[text].replace("[", r"\[").replace("$", r"\$")) as raised:
        await open_store(f"shard:///{path}")
    assert str(path) in str(raised.value) and "\n" not in str(raised.value) and "secret" not in str(raised.value)


@pytest.mark.parametrize("uri", ["shard://", "shard:///", "shard://host/list"])
async def test_a_uri_without_a_file_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="names no file"):
        await open_store(uri)


async def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the list of shards .*: No such file"):
        await open_store(f"shard:///{tmp_path}/shards.yaml")


async def test_no_shard_that_can_be_opened_is_an_error_with_every_reason(tmp_path: Path) -> None:
    uri = write_list(tmp_path / "shards.yaml", {"a": "sqlite:///x/a.db", "b": "sqlite:///y/b.db"})
    with pytest.raises(
        UsageError, match=r"no shard in .* can be opened: a: .*No such file.*; b: .*No such file"
    ) as raised:
        await open_store(uri)
    assert "\n" not in str(raised.value)


def test_files_of_sqlite_are_beside_the_list(tmp_path: Path) -> None:
    write_list(tmp_path / "shards.yaml", {"a": "sqlite:///sub/a.db", "b": "sqlite:////abs/b.db"})
    listed = ShardList(tmp_path / "shards.yaml")
    assert [listed.uri_of(spec) for spec in listed.read()] == [
        f"sqlite:///{tmp_path}/sub/a.db",
        "sqlite:////abs/b.db",
    ]


def test_a_change_that_cannot_be_used_is_reported_once_and_the_old_list_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shard_list, "LOOK_SECONDS", 0.0)
    path = tmp_path / "shards.yaml"
    write_list(path, in_sqlite("a"))
    listed = ShardList(path)
    listed.read()
    assert listed.read_if_changed() is None
    path.write_text("shards: nothing")
    with caplog.at_level(logging.ERROR):
        assert [listed.read_if_changed() for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1 and "stay in use" in caplog.text
    write_list(path, in_sqlite("a", "b"))
    found = listed.read_if_changed()
    assert found is not None and [spec.name for spec in found] == ["a", "b"]
