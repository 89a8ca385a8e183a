"""Owner of a run: the one process that trains a run whose store other machines use, too.

A lock protects a folder, but a run of a shared store can have a folder on several machines. The owner therefore writes
to the run's record in the store regularly.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from leyden.core.data.run import Run
from leyden.core.errors import RunError, StoreError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.interrupted import set_aside
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_lock import is_locked
from leyden.core.trainer.run_folder.run_sync import status_after
from leyden.core.trainer.run_folder.sharing.artifact_sync import check_continuing
from leyden.core.trainer.run_folder.sharing.artifacts import url_of_run
from leyden.core.trainer.run_folder.sharing.shared_runs import FOLDER, HOST, place_of_run
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation

BEAT_SECONDS = 10.0
"""Seconds between two writes of the owner."""
GONE_SECONDS = 60.0
"""Seconds without a write after which the owner is gone. Clocks of machines differ by less."""
log = logging.getLogger(__name__)


@asynccontextmanager
async def owned(folder: RunFolder, config: RunConfig) -> AsyncGenerator[None]:
    """Context manager: lets this process alone train a run, from which it sets unfinished rollouts aside.

    A lock has the folder already; this concerns what other machines may have: the store and the artifacts. Raises
    RunError if another process trains the run there, or has continued it.
    """
    await asyncio.to_thread(check_continuing, folder, config.artifacts)
    location = folder.store_location
    if not location.queue or not location.is_kept:
        await set_aside(location)
        yield
        return
    before = await _record(location)
    if before is not None and before.status == "running":
        _check_owner(before, folder.path)
    # with a real clock, what was left would time out
    await set_aside(location, None if before is None else before.update_time)
    store = await location.open()
    try:
        place = place_of_run(folder.path, url_of_run(config.artifacts, location.queue))
        record = Run(run_id=location.queue, name=config.name, experiment=config.experiment, metadata=place)
        await store.add_run(record)
        await store.update_run(location.queue, status="running", metadata=place)
        beating = asyncio.create_task(_beat(store, record))
        try:
            yield
        except BaseException as error:
            await _end_badly(store, location.queue, error)
            raise
        finally:
            beating.cancel()
            await asyncio.wait([beating])
    finally:
        await store.close()


async def _record(location: StoreLocation) -> Run | None:
    if not location.exists:
        return None
    store = await location.open(clock=lambda: 0.0)
    try:
        return await store.get_run_by_id(location.queue)
    finally:
        await store.close()


def _check_owner(record: Run, folder: Path) -> None:
    host, other = record.metadata.get(HOST), record.metadata.get(FOLDER)
    if host == socket.gethostname():
        if other is not None and Path(other) != folder.resolve() and is_locked(Path(other)):
            raise RunError(f"run {record.name!r} is being trained by another process, in {other}")
        return
    silent = time.time() - record.update_time
    if silent < GONE_SECONDS:
        raise RunError(
            f"run {record.name!r} is being trained on {host}, which wrote to the store {max(silent, 0):.0f} s ago: "
            f"stop it there; if that machine is gone, try again in {GONE_SECONDS - silent:.0f} s"
        )


async def _end_badly(store: LightningStore, run_id: str, error: BaseException) -> None:
    """Record that the session has ended, in case it ended before it recorded this itself."""
    try:
        await store.update_run(run_id, status=status_after(error))
    except (StoreError, OSError) as second:
        log.info("the end of run %s could not be recorded: %s", run_id, second)


async def _beat(store: LightningStore, record: Run) -> None:
    """Write to the run's record until cancelled. An error of the store is logged: the training meets it, too."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            await store.update_run(record.run_id, metadata=record.metadata)
        except (StoreError, OSError) as error:
            log.info("the record of run %s could not be written: %s", record.run_id, error)
