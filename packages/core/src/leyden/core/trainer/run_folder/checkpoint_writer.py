"""`CheckpointWriter`: writes the checkpoints of a run, one at a time, in a thread, while the run goes on."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.core.errors import TrainingError
from leyden.core.trainer.run_folder.model_selection import Standing

if TYPE_CHECKING:
    from leyden.core.policy.checkpoints.checkpoint import Trained

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes into `folder`, of which the `keep` latest checkpoints stay, and notes each in `standing` once it is whole.

    An optimizer step waits until the checkpoint before it is whole, so a run that is killed loses at most the step
    whose checkpoint was being written.
    """

    def __init__(self, folder: Path, standing: Standing, keep: int) -> None:
        self._folder, self._standing, self._keep = folder, standing, keep
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, step: int, trained: "Trained", progress: Mapping[str, Any], *, mark: bool) -> None:
        """Begin to write a checkpoint of `trained` as it is now, once the one before it is whole.

        Raises TrainingError where that one could not be written.
        """
        from leyden.core.policy.checkpoints.checkpoint import PendingCheckpoint

        await self.finish()
        pending = PendingCheckpoint(self._folder, step, trained, progress, self._keep, mark=mark)
        written = asyncio.get_running_loop().run_in_executor(None, pending.write)
        self._writing = asyncio.create_task(self._note(step, written))

    async def finish(self) -> None:
        """Return when what was begun is whole and noted; raises TrainingError where it could not be written."""
        writing = self._writing
        if writing is None:
            return
        try:
            await asyncio.shield(writing)
        finally:
            if writing.done():
                self._writing = None

    async def close(self) -> None:
        """The same at the end of a sitting, whatever it ended with; a failure is logged."""
        try:
            await self.finish()
        except TrainingError as error:
            logger.error("%s", error)

    async def _note(self, step: int, written: "asyncio.Future[Path]") -> None:
        self._standing.saved(step, await written)
