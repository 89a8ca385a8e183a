"""Runs that are in a store alone: their records, metrics, versions and rollouts, without a folder."""

from pathlib import Path

from console_runs import fill, made_run, run_apart

from leyden.core.store.open import open_store
from leyden.core.trainer.config import load_config
from leyden.core.trainer.run_folder.run_sync import StoreSync

NAMES = ("stored", "another")


def record_runs(uri: str, folders: Path) -> None:
    """Write two runs into a store, the first of which has finished. `folders` holds their folders meanwhile."""

    async def record() -> None:
        store = await open_store(uri)
        try:
            for name in NAMES:
                folder = made_run(folders, name)
                sync = StoreSync(store, folder, load_config(folder.config_file))
                await sync.begin(2)
                if name == NAMES[0]:
                    await sync.end()
            await fill(store)
        finally:
            await store.close()

    run_apart(record())
