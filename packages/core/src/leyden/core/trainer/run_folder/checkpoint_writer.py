"""Checkpoint writer: writes the checkpoints of a run one at a time, in a thread, while the run continues."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.core.errors import TrainingError
from leyden.core.policy.checkpoints.retention import write_checkpoint
from leyden.core.trainer.run_folder.model_selection import ModelSelection

if TYPE_CHECKING:
    from leyden.core.policy.checkpoints.checkpoint import Trained

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes checkpoints into `folder`, keeps the `keep` latest, and records each in `selection` once it is complete.

    An optimizer step waits until the checkpoint before it is complete. A run that is killed therefore loses at most the
    step whose checkpoint was being written.
    """

    def __init__(self, folder: Path, selection: ModelSelection, keep: int) -> None:
        self._folder, self._selection, self._keep = folder, selection, keep
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, step: int, trained: "Trained", progress: Mapping[str, Any], *, mark: bool) -> None:
        """Start writing a checkpoint of the current state of `trained`, after the previous checkpoint is complete.

        Without a policy, it holds only `progress`. Raises TrainingError if the previous checkpoint could not be
        written.
        """
        await self.finish()
        write = self._pending(step, trained, progress, mark=mark)
        written = asyncio.get_running_loop().run_in_executor(None, write)
        self._writing = asyncio.create_task(self._note(step, written))

    def _pending(self, step: int, trained: "Trained", progress: Mapping[str, Any], *, mark: bool) -> Callable[[], Path]:
        if isinstance(trained, Mapping) and not trained:
            text = json.dumps(dict(progress))
            return partial(write_checkpoint, self._folder, step, text, self._keep, mark=mark)
        from leyden.core.policy.checkpoints.checkpoint import PendingCheckpoint

        return PendingCheckpoint(self._folder, step, trained, progress, self._keep, mark=mark).write

    async def finish(self) -> None:
        """Return when the pending checkpoint is complete and recorded; raises TrainingError if writing it failed."""
        writing = self._writing
        if writing is None:
            return
        try:
            await asyncio.shield(writing)
        finally:
            if writing.done():
                self._writing = None

    async def close(self) -> None:
        """Finish the pending checkpoint at the end of a session; a failure is logged, not raised."""
        try:
            await self.finish()
        except TrainingError as error:
            logger.error("%s", error)

    async def _note(self, step: int, written: "asyncio.Future[Path]") -> None:
        self._selection.saved(step, await written)
