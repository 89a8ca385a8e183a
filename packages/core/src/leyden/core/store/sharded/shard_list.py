"""`ShardList`: the file that lists the shards of a store, and a check whether it has changed.

    shards:
      - {name: a, uri: "postgresql://leyden@db-1/leyden"}
      - {name: b, uri: "redis://db-2:6379/0", state: draining}

YAML or JSON. Every process reads it again within `LOOK_SECONDS` of a change.
"""

import logging
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import yaml

from leyden.core.errors import UsageError, first_line
from leyden.core.store.text import without_login

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Longest time after which a process that uses the store notices a change of the file."""
SCHEMES = ("sqlite", "postgresql", "redis", "rediss", "redis+unix")
"""Kinds of stores that can be shards."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ShardState: TypeAlias = Literal["active", "draining"]
_Version: TypeAlias = "tuple[int, int, int]"


class ShardSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the list."""

    name: str
    """Identifies the shard; rollouts are placed by it, so it must not change."""
    uri: str
    """Address of the shard, which may change when its server moves."""
    state: ShardState = "active"
    """A draining shard takes no new rollouts; its own are claimed and read as before."""


class _Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shards: list[ShardSpec]


class ShardList:
    """The list in the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._version: _Version | None = None
        self._look_at = 0.0
        self._problem = ""

    def read(self) -> Sequence[ShardSpec]:
        """Return the entries. Raises UsageError with the place and the reason where the file cannot be used."""
        try:
            self._version = self._version_now()
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"cannot read the list of shards {self.path}: {reason}") from error
        self._look_at = time.monotonic() + LOOK_SECONDS
        try:
            listed = msgspec.convert(yaml.safe_load(text), _Listed).shards
        except yaml.YAMLError as error:
            raise UsageError(f"{self.path} is not YAML or JSON: {first_line(error)}") from error
        except msgspec.ValidationError as error:
            raise UsageError(
                f"{self.path} is not a list of shards: {error}; it has the form shards: [{{name: a, uri: URI}}, ...]"
            ) from error
        return self._checked(listed)

    def read_if_changed(self) -> Sequence[ShardSpec] | None:
        """Return the entries where the file has changed since they were read, otherwise None.

        A file that cannot be used is reported in the log, once, and the old list stays in use.
        """
        if time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + LOOK_SECONDS
        try:
            if self._version_now() == self._version:
                return None
            found = self.read()
        except (OSError, UsageError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("%s; the shards that were listed before stay in use", error)
            return None
        self._problem = ""
        return found

    def _version_now(self) -> _Version:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _checked(self, listed: Sequence[ShardSpec]) -> Sequence[ShardSpec]:
        if not listed:
            raise UsageError(f"{self.path} lists no shard")
        for spec in listed:
            where = f"shard {spec.name[:64]!r} in {self.path}"
            if not _NAME.fullmatch(spec.name):
                raise UsageError(f"{where} has an invalid name: it must match {_NAME.pattern}")
            scheme, separator, _ = spec.uri.partition("://")
            if not separator or scheme not in SCHEMES:
                kinds = ", ".join(f"{name}://" for name in SCHEMES)
                raise UsageError(f"{where} has the URI {without_login(spec.uri)!r}; a shard can be {kinds}")
        for what, values in (("name", [spec.name for spec in listed]), ("URI", [self.uri_of(spec) for spec in listed])):
            twice = next((value for value, count in Counter(values).items() if count > 1), None)
            if twice is not None:
                raise UsageError(f"{self.path} lists two shards with the {what} {without_login(twice)}")
        if all(spec.state == "draining" for spec in listed):
            raise UsageError(f"all shards in {self.path} are draining, so there is none for new rollouts")
        return listed

    def uri_of(self, spec: ShardSpec) -> str:
        """Return the URI of a shard; the path of a SQLite file is relative to the folder of the list."""
        path: Any = spec.uri.removeprefix("sqlite:///")
        if path == spec.uri or path.startswith("/"):
            return spec.uri
        return f"sqlite:///{(self.path.parent / path).absolute()}"
