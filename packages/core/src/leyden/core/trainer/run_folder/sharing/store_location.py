"""Store location: where the rollouts of a run are kept. This is a file of its folder, or a store that runs share."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from leyden.core.errors import RunError, UsageError
from leyden.core.masking import MASK, PASSWORD_IN_URL, SECRET_OPTION_OF_URL, mask_text
from leyden.core.store.base import LightningStore
from leyden.core.store.open import check_uri, open_store
from leyden.core.store.queue_view import QueueView

VARIABLE = "LEYDEN_STORE"
"""Environment variable with the URI of a store, password included. `config.yaml` keeps no password."""
_HTTP = re.compile(r"https?://")
_OF_FILES = "sqlite:///", "shard:///"
"""Beginnings of URIs that name a file of this machine."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store, or the part of a store that belongs to one run."""

    uri: str = field(repr=False)
    """URI with its password."""
    queue: str = ""
    """Queue of the run in a store that several runs share, which is the run's id; empty for all of a store."""

    @property
    def prefix(self) -> str:
        """Beginning of the ids of the run's rollouts in a shared store; empty in a store of the run's own."""
        return f"{self.queue}." if self.queue else ""

    @property
    def is_kept(self) -> bool:
        """Whether another process can read what this one stores."""
        return not self.uri.startswith("memory:")

    @property
    def exists(self) -> bool:
        """Whether opening the store would not create it. A server's store is not looked for."""
        return self.is_kept and not (self.uri.startswith(_OF_FILES) and not file_of(self.uri).exists())

    def __str__(self) -> str:
        return shown_uri(self.uri)

    async def open(self, clock: Callable[[], float] = time.time, patience: float | None = None) -> LightningStore:
        """Open the store; see `open_store`. Of a shared store, the run sees only what it enqueued itself.

        Raises UsageError or StoreError for a store that cannot be opened.
        """
        store = await open_store(self.uri, clock=clock, patience=patience)
        return QueueView(store, self.queue) if self.queue else store


def file_of(uri: str) -> Path:
    """Return the file that the URI of a store names: that of SQLite, or the list of shards."""
    return Path(uri.partition("://")[2].removeprefix("/"))


def settled_uri(uri: str) -> str:
    """Return the URI of a store as it holds in every working folder: the path of a file becomes absolute."""
    scheme = next((scheme for scheme in _OF_FILES if uri.startswith(scheme)), None)
    if scheme is None or not (path := uri.removeprefix(scheme)) or path.startswith((":", "/")):
        return uri
    return f"{scheme}{Path(path).resolve()}"


def checked_uri(uri: str) -> str:
    """Return what `settled_uri` returns. Raises UsageError for a URI that no store has; an object's name is none."""
    if not uri.startswith("<"):
        check_uri(uri)
    return settled_uri(uri)


def shown_uri(uri: str) -> str:
    """Return the URI of a store for messages: without login, and without the values of secret options."""
    return SECRET_OPTION_OF_URL.sub(rf"\1{MASK}", mask_text(uri))


def recorded_uri(uri: str) -> str:
    """Return the URI of a store as `config.yaml` keeps it: without password or token. A user's name stays readable."""
    if _HTTP.match(uri):
        return mask_text(uri)
    return SECRET_OPTION_OF_URL.sub(rf"\1{MASK}", PASSWORD_IN_URL.sub(rf"\1:{MASK}@", uri))


_remembered: dict[str, str] = {}
"""URIs that the user gave in this process, by their recorded form."""


def remember_store(uri: str, recorded: str | None = None) -> None:
    """Use `uri` in this process wherever a run has recorded it as `recorded`, by default without its password."""
    _remembered[recorded or recorded_uri(uri)] = uri


def usable_uri(recorded: str, run: str) -> str:
    """Return the URI with which to open the store that the run named `run` recorded as `recorded`.

    The password comes from LEYDEN_STORE, whose URI must be the same apart from that. The token of a store's server may
    be in LEYDEN_STORE_TOKEN instead. Raises RunError if the password is missing.
    """
    if recorded in _remembered:
        return _remembered[recorded]
    given = settled_uri(os.environ.get(VARIABLE, ""))
    is_object = recorded.startswith("<")
    if given and (is_object or recorded_uri(given) == recorded):
        return given
    if is_object:
        raise RunError(f"the rollouts of run {run!r} are in a store that was given in Python: {recorded[1:-1]}")
    if MASK in recorded and not _HTTP.match(recorded):
        raise RunError(
            f"the rollouts of run {run!r} are in {recorded}, and its folder does not keep the password: set {VARIABLE} "
            "to the URI with the password"
        )
    return recorded


def check_same_store(recorded: str | None, given: str, run: str) -> None:
    """Raise UsageError if `given` is not the store that a run began with, recorded as `recorded`."""
    if recorded is None:
        raise UsageError(f"run {run!r} keeps its rollouts in its own folder: leave --store out")
    if recorded_uri(settled_uri(given)) != recorded:
        raise UsageError(f"run {run!r} began with the store {recorded}, and cannot move to {shown_uri(given)}")
