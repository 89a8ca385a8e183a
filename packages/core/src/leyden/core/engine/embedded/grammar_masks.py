"""Grammar masks: computes the tokens that grammars allow next, on another thread while the model's forward pass runs.

The masks depend only on the tokens so far, so they are ready when the logits are. llguidance releases the interpreter
while it computes them.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from leyden.core.engine.embedded.adjusted_logits import Adjustment, ResponseSoFar
from leyden.core.grammar.compiler import Bits, GrammarState


class PendingMasks:
    """The masks of one step, while they are computed."""

    def __init__(self, rows: Sequence[ResponseSoFar | None], bits: "Future[Bits] | None") -> None:
        self._rows = rows
        self._bits = bits

    def adjustments(self) -> list[Adjustment | None]:
        """Wait for the masks; return what changes the logits of each row, None for rows that nothing changes."""
        bits_M = iter(() if self._bits is None else self._bits.result())
        return [
            None if row is None else row.adjustment(None if row.grammar is None else next(bits_M)) for row in self._rows
        ]


class GrammarMasks:
    """Computes the masks of a decoder's rows, on a thread of its own."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def begin(self, rows: Sequence[ResponseSoFar | None]) -> PendingMasks:
        """Begin to compute the masks of the rows that have a grammar."""
        states = [row.grammar for row in rows if row is not None and row.grammar is not None]
        if not states:
            return PendingMasks(rows, None)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="leyden-grammar")
        return PendingMasks(rows, self._thread.submit(_bits, states))

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()


def _bits(states: Sequence[GrammarState]) -> Bits:
    """Return `bits_MW`, the tokens that each of the M grammars allows."""
    bits_MW = np.zeros((len(states), states[0].width), dtype=np.int32)
    for bits_W, state in zip(bits_MW, states, strict=True):
        state.write_allowed(bits_W)
    return bits_MW
