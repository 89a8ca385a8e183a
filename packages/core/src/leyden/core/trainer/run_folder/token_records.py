"""Token records: the files of a run with what each of its steps computed for every trained token."""

import logging
import shutil
from pathlib import Path

from leyden.core.errors import RunError
from leyden.core.policy.checkpoints.atomic import replace_file
from leyden.core.policy.update.token_record import PolicyTokens, TokenRecord, decode, encode

TOKENS = "tokens"
"""Folder of the files within a run's folder."""

log = logging.getLogger(__name__)


class TokenRecords:
    """One file for each step, in a folder of a run."""

    def __init__(self, run: Path) -> None:
        self.folder = run / TOKENS

    def write(self, step: int, record: TokenRecord) -> None:
        """Write the record of a step in the place of an earlier one; a failure is logged and stops nothing."""
        try:
            self.folder.mkdir(exist_ok=True)
            replace_file(self.path(step), encode(record))
        except OSError as error:
            log.warning("the trained tokens of step %d could not be recorded: %s", step, error)

    def read(self, step: int) -> dict[str, PolicyTokens] | None:
        """Return the record of a step by policy or side; None if there is none. Raises RunError if it is damaged."""
        try:
            data = self.path(step).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return decode(data)
        except RunError as error:
            raise RunError(f"{self.path(step)}: {error}") from None

    def after(self, step: int) -> list[Path]:
        """Return the files of the steps after `step`, in order."""
        return [path for path in sorted(self.folder.glob("step-*")) if path.name > self.path(step).name]

    def rewind(self, step: int) -> None:
        """Remove the files of the steps after `step`, which will be repeated."""
        if step <= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        for path in self.after(step):
            path.unlink(missing_ok=True)

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.folder / f"step-{step:08d}.msgpack.z"
