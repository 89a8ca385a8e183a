"""Owner of a run: the one process that trains a run whose store other machines use, too.

A lock protects a folder, but a run of a shared store can have a folder on several machines. The owner therefore writes
to the run's record in the store regularly.
"""

import asyncio
import logging
import socket
import time
from pathlib import Path

from leyden.core.data.run import Run
from leyden.core.errors import RunError, StoreError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.run_folder.run_lock import is_locked
from leyden.core.trainer.run_folder.shared_runs import FOLDER, HOST
from leyden.core.trainer.run_folder.store_location import StoreLocation

BEAT_SECONDS = 10.0
"""Seconds between two writes of the owner."""
GONE_SECONDS = 60.0
"""Seconds without a write after which the owner is gone. Clocks of machines differ by less."""
log = logging.getLogger(__name__)


async def check_free(location: StoreLocation, folder: Path) -> None:
    """Raise RunError if another process trains the run of a shared store; `folder` is the run's folder here."""
    if not location.queue or not location.exists:
        return
    store = await location.open(clock=lambda: 0.0)
    try:
        record = await store.get_run_by_id(location.queue)
    finally:
        await store.close()
    if record is not None and record.status == "running":
        _check_owner(record, folder)


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


async def beat(store: LightningStore, run_id: str) -> None:
    """Write to the run's record until cancelled. An error of the store is logged: the training meets it, too."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            await store.update_run(run_id, status="running")
        except (StoreError, OSError) as error:
            log.info("the record of run %s could not be written: %s", run_id, error)
