"""Lists of shards, written for tests of stores over several others."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from leyden.core.store.sharded.shard_list import ShardState


def write_list(path: Path, uris: Mapping[str, str], **states: ShardState) -> str:
    """Write a list of shards by name, with the states of some, in place of an earlier one; return the store's URI."""
    shards = [{"name": name, "uri": uri, "state": states.get(name, "active")} for name, uri in uris.items()]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"shards": shards}))
    new.replace(path)
    return f"shard:///{path}"


def in_sqlite(*names: str) -> dict[str, str]:
    """Return the URIs of SQLite files beside the list, by name."""
    return {name: f"sqlite:///{name}.db" for name in names}
