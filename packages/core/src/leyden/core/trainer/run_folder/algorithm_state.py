"""State of an algorithm on disk: what it saved within a step, so that a resumed run need not repeat that work."""

import json
from typing import Any

import msgspec

from leyden.core.policy.checkpoints.atomic import replace_file
from leyden.core.trainer.run_folder.folder import RunFolder

STEPS = 2
"""Number of latest steps whose state is kept: a crash after a step was published repeats the step before."""


class _StateFile(msgspec.Struct, frozen=True, kw_only=True):
    lineage: str
    """Prefix of rollout ids at that time. After a rollback it is another one, and the file does not apply."""
    states: dict[int, Any]
    """State saved last, by the number of steps taken until then."""


class AlgorithmState:
    """The state that the algorithm of the run in `folder` saves."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.state_file

    def save(self, step: int, lineage: str, state: Any) -> Any:
        """Write the state that belongs to `step`; return it as a resumed run will find it.

        Raises TypeError or ValueError for a value that JSON cannot hold.
        """
        kept = json.loads(json.dumps(state, allow_nan=False))
        known = self._read()
        earlier = known.states if known is not None and known.lineage == lineage else {}
        states = {number: own for number, own in earlier.items() if step - STEPS < number < step}
        file = _StateFile(lineage=lineage, states={**states, step: kept})
        replace_file(self._path, msgspec.json.encode(file))
        return kept

    def restore(self, step: int, lineage: str, checkpoint: Any) -> Any:
        """Return the state to continue from after `step`: the one saved last, else that of the `checkpoint`."""
        known = self._read()
        if known is None or known.lineage != lineage:
            return checkpoint
        return known.states.get(step, checkpoint)

    def latest(self, step: int, lineage: str, checkpoint: Any) -> Any:
        """Return the state saved last in a run whose latest checkpoint, with the state `checkpoint`, is of `step`."""
        known = self._read()
        if known is None or known.lineage != lineage:
            return checkpoint
        last = max(known.states)
        return known.states[last] if last >= step else checkpoint

    def _read(self) -> _StateFile | None:
        return msgspec.json.decode(self._path.read_bytes(), type=_StateFile) if self._path.exists() else None
