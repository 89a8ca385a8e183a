"""Artifacts: copies of a run's folder at a URL, from which another machine continues or reads the run.

What a file holds is stored once, under its SHA-256, and never changed. `run.json` lists the files of one moment, and is
written after all that it names. A process that is killed while it writes therefore leaves the list of before.
"""

import hashlib
import logging
import os
import shlex
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import msgspec

from leyden.core.errors import RunError, UsageError
from leyden.core.masking import mask_text
from leyden.core.policy.checkpoints.atomic import replace_file, whole_folder
from leyden.core.store.open import SCHEMES
from leyden.core.trainer.run_folder.run_lock import is_locked
from leyden.core.trainer.run_folder.sharing.snapshot import PART, STAMP, SnapshotFile

LIST = "run.json"
OBJECTS = "objects"
log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """One file."""

    sha256: str
    size: int
    modified: int
    """Time of its last change, in nanoseconds."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a run's folder at one moment."""

    run_id: str
    name: str
    stamp: str
    """Random text, which every new list has for itself."""
    time: float
    """Unix seconds."""
    files: dict[str, Entry]
    """Files by their path below the folder."""


class Artifacts:
    """The copy of one run's folder at `url`: a folder, or a URL for which fsspec has a file system, as s3://."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = _file_system(self.url)

    @staticmethod
    def is_at(uri: str) -> bool:
        """Whether `uri` is a URL of artifacts, by its scheme, or a folder with the artifacts of a run."""
        scheme, separator, _ = uri.partition("://")
        if separator:
            return scheme not in SCHEMES
        return Path(uri, LIST).is_file() and Path(uri, OBJECTS).is_dir()

    def listing(self) -> Listing | None:
        """Return the files of the copy; None if there is none. Raises RunError if it cannot be read."""
        try:
            return msgspec.json.decode(self._fs.cat_file(f"{self._root}/{LIST}"), type=Listing)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise RunError(f"the artifacts at {mask_text(self.url)} cannot be read: {_line(error)}") from None

    def put(self, files: Mapping[str, SnapshotFile], folder: Path, run_id: str) -> None:
        """Write what has changed of a run's folder, whose state are `files`, and record the copy's stamp there.

        Raises RunError if another process has written since, and OSError if the copy cannot be written.
        """
        self._fs.makedirs(self._root, exist_ok=True)
        if self._is("file"):
            Path(self._root).chmod(0o700)  # as the run's folder, it holds prompts, answers and logs
        before = self.listing()
        check_stamp(self.url, before, run_id, folder)
        old = {} if before is None else before.files
        there = {entry.sha256 for entry in old.values()}
        entries: dict[str, Entry] = {}
        for path, file in files.items():
            known = old.get(path)
            if known is not None and (known.size, known.modified) == (file.size, file.modified):
                entries[path] = known
                continue
            entry = entries[path] = Entry(file.sha256(), file.size, file.modified)
            if entry.sha256 not in there:
                self._write(entry.sha256, file)
                there.add(entry.sha256)
        if before is not None and entries == old:
            _write_stamps(folder, before.stamp)
            return
        listing = Listing(run_id=run_id, name=folder.name, stamp=uuid4().hex, time=time.time(), files=entries)
        # both: if the process is killed before it knows that the list was written, its folder is still up to date
        _write_stamps(folder, *([] if before is None else [before.stamp]), listing.stamp)
        self._write_list(listing)
        _write_stamps(folder, listing.stamp)
        self._remove(there - {entry.sha256 for entry in entries.values()})

    def _object(self, sha256: str) -> str:
        return f"{self._root}/{OBJECTS}/{sha256[:2]}/{sha256}"

    def _write(self, sha256: str, file: SnapshotFile) -> None:
        path = self._object(sha256)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self.whole_file(path) as target:
            for part in file.parts():
                target.write(part)

    def _write_list(self, listing: Listing) -> None:
        with self.whole_file(f"{self._root}/{LIST}") as target:
            target.write(msgspec.json.format(msgspec.json.encode(listing), indent=1) + b"\n")

    @contextmanager
    def whole_file(self, path: str) -> Generator[BinaryIO]:
        """Open a file to write. It has all of its content under its name, or does not exist there.

        Object stores work this way. In other file systems, a file is renamed once it is complete.
        """
        if self._is("s3", "s3a", "gs", "gcs", "abfs", "az", "memory"):
            with self._fs.open(path, "wb") as file:
                yield file
            return
        pending = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
        with self._fs.open(pending, "wb") as file:
            yield file
        self._fs.mv(pending, path)

    def _is(self, *protocols: str) -> bool:
        own: str | tuple[str, ...] = self._fs.protocol
        return not {own, *own}.isdisjoint(protocols)

    def _remove(self, gone: set[str]) -> None:
        for sha256 in gone:
            try:
                self._fs.rm_file(self._object(sha256))
            except OSError as error:  # it is removed with the whole copy
                log.info("an older file of the artifacts could not be removed: %s", _line(error))

    def get_below(self, runs: Path) -> Path:
        """Write the copy as a run's folder below `runs`, and return it.

        A folder of the same run stays, if no other machine has continued the run since. Otherwise it is renamed. Raises
        RunError if there is no copy, if it is damaged, if another run has the folder's name, or if a process trains the
        older folder.
        """
        listing = self.listing()
        if listing is None:
            raise RunError(f"there are no artifacts of a run at {mask_text(self.url)}")
        target = runs / _checked_name(listing.name)
        if target.exists():
            own = target / "run_id"
            if not own.is_file() or own.read_text().strip() != listing.run_id:
                raise RunError(
                    f"{target} is another run than {listing.run_id}, which is at {mask_text(self.url)}: give another "
                    "--runs"
                )
            if is_current(target, listing):
                return target
            if is_locked(target):
                raise RunError(
                    f"run {target.name!r} was continued on another machine, and a process still trains the older "
                    f"folder {target}: stop it first"
                )
            aside = _free(target)
            target.rename(aside)
            log.warning("run %s was continued on another machine; its older folder here is now %s", target.name, aside)
        try:
            with whole_folder(target, private=True) as pending:
                for path, entry in listing.files.items():
                    self._get(entry, _inside(pending, path))
                _write_stamps(pending, listing.stamp)
        except OSError as error:
            raise RunError(f"the artifacts at {mask_text(self.url)} cannot be copied: {_line(error)}") from None
        return target

    def _get(self, entry: Entry, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with self._fs.open(self._object(entry.sha256), "rb") as source, target.open("wb") as file:
            while part := source.read(PART):
                digest.update(part)
                file.write(part)
        if digest.hexdigest() != entry.sha256:
            raise RunError(f"the artifacts at {mask_text(self.url)} are damaged: {target.name} has changed")
        os.utime(target, ns=(entry.modified, entry.modified))


def check_stamp(url: str, listing: Listing | None, run_id: str, folder: Path) -> None:
    """Raise RunError unless the copy is that of the run, and the one that `folder` was written to or read from last."""
    if listing is None:
        return
    where = mask_text(url)
    if listing.run_id != run_id:
        raise RunError(f"{where} has the artifacts of another run, {listing.run_id}")
    if not is_current(folder, listing):
        raise RunError(
            "another machine has continued the run since: continue it from there with leyden train --resume "
            f"{shlex.quote(where)}"
        )


def is_current(folder: Path, listing: Listing) -> bool:
    """Whether a copy is the one that a run's folder was written to or read from last, so that it has nothing newer."""
    file = folder / STAMP
    return file.exists() and listing.stamp in file.read_text(encoding="utf-8").split()


def _write_stamps(folder: Path, *stamps: str) -> None:
    """Record the stamps of copies that have the state of a folder."""
    replace_file(folder / STAMP, "".join(f"{stamp}\n" for stamp in stamps).encode())


def _free(path: Path) -> Path:
    """Return a path beside `path` that does not exist."""
    return next(one for n in count(1) if not (one := path.with_name(f"{path.name}.older-{n}")).exists())


def _checked_name(name: str) -> str:
    """Return the name of a run's folder. Raises RunError if it could be the path of another folder."""
    if name != Path(name).name or name in ("", ".", ".."):
        raise RunError(f"the list of artifacts has a name that no run can have: {name!r}")
    return name


def _inside(folder: Path, path: str) -> Path:
    """Return the path of a file below `folder`. Raises RunError if it would be outside."""
    target = folder / path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise RunError(f"the list of artifacts names a file outside the run's folder: {path}")
    return target


def url_of_run(artifacts: str | None, run_id: str) -> str | None:
    """Return the URL of a run's copy below `artifacts`, which several runs may share; None without artifacts."""
    return None if artifacts is None else f"{artifacts.rstrip('/')}/{run_id}"


def settled_url(url: str) -> str:
    """Return the URL of artifacts as it holds in every working folder. Raises UsageError if it cannot be used."""
    if "://" not in url:
        _file_system(url)
        return str(Path(url).resolve())
    if mask_text(url) != url:
        raise UsageError(
            f"--artifacts {mask_text(url)} holds a secret, which config.yaml would not keep: give it as the file "
            "system's library expects it, for s3:// in AWS_SECRET_ACCESS_KEY"
        )
    if not Artifacts.is_at(url):
        raise UsageError(f"--artifacts takes a folder or a URL such as s3://bucket/path, not a store: {mask_text(url)}")
    _file_system(url)
    return url


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it. Raises UsageError where a library for it is missing."""
    try:
        fsspec: Any = import_module("fsspec.core")
    except ImportError:
        raise UsageError("--artifacts needs fsspec: pip install 'leyden-core[artifacts]'") from None
    root: str
    try:
        file_system, root = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"the artifacts at {mask_text(url)} cannot be reached: {_line(error)}") from None
    return file_system, root.rstrip("/")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
