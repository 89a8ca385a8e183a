"""Artifact copying: copies the folder of a run to its artifacts after every step, while the run goes on."""

import asyncio
import logging
from contextlib import ExitStack

from leyden.core.errors import RunError
from leyden.core.masking import mask_text
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.artifacts import Artifacts, check_stamp, url_of_run
from leyden.core.trainer.run_folder.sharing.snapshot import SnapshotFile, snapshot

log = logging.getLogger(__name__)


class ArtifactSync:
    """Copies of one run's folder. One copy is written at a time; states between two copies are left out."""

    def __init__(self, artifacts: Artifacts, folder: RunFolder, run_id: str) -> None:
        self._artifacts, self._folder, self._run_id = artifacts, folder, run_id
        self._waiting: _Taken | None = None
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        """Why the last copy could not be written."""

    async def catch_up(self) -> None:
        """Copy the folder's state of now, in the background. Raises RunError if another machine writes there, too."""
        if isinstance(self._failure, RunError):
            raise self._failure
        taken = await asyncio.to_thread(_Taken, self._folder)
        if self._waiting is not None:
            self._waiting.close()
        self._waiting = taken
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def end(self) -> None:
        """Copy the folder's last state, and return when that is done. Raises RunError if it could not be written."""
        await self.catch_up()
        assert self._writing is not None
        await self._writing
        if self._failure is not None:
            raise RunError(
                f"the run's folder {self._folder.path} is complete, but could not be copied to "
                f"{mask_text(self._artifacts.url)}: {self._failure}"
            )

    async def end_badly(self) -> None:
        """As `end`, but log an error: another one came first."""
        try:
            await self.end()
        except (RunError, OSError) as error:
            log.warning("%s", error)

    async def _write_all(self) -> None:
        while self._waiting is not None:
            taken, self._waiting = self._waiting, None
            try:
                await asyncio.to_thread(self._write, taken)
                self._failure = None
            except Exception as error:  # the library of a URL raises errors of its own
                self._failure = error
                log.warning("the artifacts could not be written, and are tried again after the next step: %s", error)
            finally:
                taken.close()

    def _write(self, taken: "_Taken") -> None:
        self._artifacts.put(taken.files, self._folder.path, self._run_id)


def check_continuing(folder: RunFolder, artifacts: str | None) -> None:
    """Raise RunError if another machine has continued the run since, or if its artifacts cannot be read."""
    run_id = folder.known_run_id()
    if run_id is not None and (url := url_of_run(artifacts, run_id)) is not None:
        check_stamp(url, Artifacts(url).listing(), run_id, folder.path)


class _Taken:
    """State of a run's folder at one moment."""

    def __init__(self, folder: RunFolder) -> None:
        self._closing = ExitStack()
        self.files: dict[str, SnapshotFile] = self._closing.enter_context(snapshot(folder.path))

    def close(self) -> None:
        """Release the state."""
        self._closing.close()
