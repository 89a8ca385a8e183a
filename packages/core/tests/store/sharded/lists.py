"""Lists of shards for tests."""

from collections.abc import Mapping
from pathlib import Path

import yaml


def write_list(path: Path, uris: Mapping[str, str], **states: str) -> str:
    """Write a list of shards by name, with the states of some; return the URI of the store."""
    shards = [{"name": name, "uri": uri, "state": states.get(name, "active")} for name, uri in uris.items()]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"shards": shards}))
    new.replace(path)
    return f"shard:///{path}"


def in_sqlite(*names: str) -> dict[str, str]:
    """Return URIs of SQLite files beside the list."""
    return {name: f"sqlite:///{name}.db" for name in names}
