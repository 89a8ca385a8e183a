"""Runs of a store, named as URI#RUN: finds the folder of such a run, on this machine or at its artifacts."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leyden.core.data.page import Page
from leyden.core.data.run import Run
from leyden.core.errors import RunError, UsageError
from leyden.core.masking import mask_text
from leyden.core.store.base import LightningStore
from leyden.core.trainer.run_folder.run_lock import is_locked
from leyden.core.trainer.run_folder.sharing.artifacts import Artifacts, is_current
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation, remember_store, settled_uri

FOLDER, HOST, ARTIFACTS = "folder", "host", "artifacts"
"""Keys of a run's metadata in its store: path of its folder, name of that machine, and URL of its artifacts."""
SHOWN = 5
"""Number of runs that an error names."""
log = logging.getLogger(__name__)


def place_of_run(folder: Path, artifacts: str | None) -> dict[str, Any]:
    """Return the metadata with which a run is found from its store."""
    return {FOLDER: str(folder.resolve()), HOST: socket.gethostname(), ARTIFACTS: artifacts}


def is_address(name: str) -> bool:
    """Whether `name` is a URI, or a folder with the artifacts of a run, and not the name or the folder of a run."""
    return "://" in name or Artifacts.is_at(name)


def split_address(name: str) -> tuple[str, str]:
    """Return the URI of the store and the name or id of the run in `URI#RUN`; the run is empty if none is named."""
    uri, separator, run = name.rpartition("#")
    return (settled_uri(uri), run) if separator else (settled_uri(name), "")


def folder_of(name: str, runs: Path) -> Path:
    """Return the folder of the run `URI#RUN`, from its artifacts if these are newer than its folder on this machine.

    `URI` alone names the only run of a store, and the URL or folder of a run's artifacts that run. A folder from
    artifacts is written below `runs`. The path is absolute. Raises RunError where there is no such run, or where its
    folder is on another machine.
    """
    runs = runs.resolve()
    if Artifacts.is_at(name):
        return Artifacts(name).get_below(runs)
    uri, wanted = split_address(name)
    record = asyncio.run(_read(uri, wanted))
    remember_store(uri)
    url: str | None = record.metadata.get(ARTIFACTS)
    found = folders_on_this_machine(record, runs)
    if found:
        return found[0] if url is None else _newest(found, url, record.run_id, runs)
    if url is not None:
        return Artifacts(url).get_below(runs)
    where, host = record.metadata.get(FOLDER), record.metadata.get(HOST)
    if where is None:
        raise RunError(f"{mask_text(name)} does not say where the run's folder is; an older version of Leyden wrote it")
    raise RunError(
        f"the folder of run {record.name!r} is {where} on {host}, and not on this machine: copy it into {runs}, or "
        "train with --artifacts, which other machines can read"
    )


def _newest(found: Sequence[Path], url: str, run_id: str, runs: Path) -> Path:
    """Return a folder of this machine that has all that the artifacts have, or get them.

    A folder that a process trains is returned as it is. So is the first one, with a warning, if the artifacts cannot be
    read.
    """
    for folder in found:
        if is_locked(folder):
            return folder
    try:
        artifacts = Artifacts(url)
        listing = artifacts.listing()
    except (RunError, UsageError) as error:
        log.warning("%s is used, and another machine may have continued the run since: %s", found[0], error)
        return found[0]
    if listing is None or listing.run_id != run_id:
        return found[0]
    current = next((folder for folder in found if is_current(folder, listing)), None)
    return artifacts.get_below(runs) if current is None else current


def runs_of_store(name: str) -> Page[Run] | None:
    """Return all runs of the store that `URI` names, the newest first; None if `name` is no store.

    Raises RunError where there is no such store.
    """
    if "://" not in name or Artifacts.is_at(name) or split_address(name)[1]:
        return None
    return asyncio.run(_all_runs(split_address(name)[0]))


async def _all_runs(uri: str) -> Page[Run]:
    store = await _open(StoreLocation(uri))
    try:
        return await store.query_runs(sort_by="start_time", sort_order="desc")
    finally:
        await store.close()


async def _open(location: StoreLocation) -> LightningStore:
    if not location.exists:
        raise RunError(f"there is no store {location}" if location.is_kept else f"{location} keeps no run")
    return await location.open(clock=lambda: 0.0)


async def _read(uri: str, wanted: str) -> Run:
    """Return the record of a run. Raises RunError unless exactly one run of the store has this id or name."""
    location = StoreLocation(uri)
    store = await _open(location)
    try:
        if wanted and (run := await store.get_run_by_id(wanted)) is not None:
            return run
        runs = (await store.query_runs(name=wanted or None, sort_by="start_time", sort_order="desc")).items
        if len(runs) == 1:
            return runs[0]
        others = runs or ((await store.query_runs(sort_by="start_time", sort_order="desc")).items if wanted else [])
    finally:
        await store.close()
    if not others:
        raise RunError(f"there is no run in {location}")
    if not runs:
        raise RunError(f"no run of {location} is called {wanted!r}; runs there: {_listed(others, location)}")
    what = f"several runs of {location} are called {wanted!r}" if wanted else f"{location} has {len(runs):,} runs"
    raise RunError(f"{what}; name one as {location}#RUN: {_listed(others, location)}")


def _listed(runs: Sequence[Run], location: StoreLocation) -> str:
    more = f" and {len(runs) - SHOWN:,} older ones, which `leyden show {location}` lists"
    return ", ".join(run.run_id for run in runs[:SHOWN]) + (more if len(runs) > SHOWN else "")


def folder_on_this_machine(record: Run) -> Path | None:
    """Return the folder of a run where it was trained last, if that is on this machine."""
    return next(iter(folders_on_this_machine(record)), None)


def folders_on_this_machine(record: Run, runs: Path | None = None) -> list[Path]:
    """Return the folders of a run on this machine: below `runs`, and where it was trained last."""
    known = record.metadata.get(FOLDER)
    places = [*([] if runs is None else [runs / record.name]), *([] if known is None else [Path(known)])]
    return [path for path in dict.fromkeys(places) if _run_id_in(path) == record.run_id]


def _run_id_in(folder: Path) -> str | None:
    file = folder / "run_id"
    return file.read_text().strip() if file.is_file() else None
