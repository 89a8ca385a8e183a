"""Grammar masks: computes the tokens that grammars allow next, on another thread while the model's forward pass runs.

The masks depend only on the tokens so far, so they are ready when the logits are. llguidance computes the masks of all
rows in one call, which does not hold the interpreter's lock.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from leyden.core.engine.embedded.adjusted_logits import ResponseSoFar, adjust_rows, mask_rows
from leyden.core.grammar.compiler import Bits, GrammarState, MaskWriter


class PendingMasks:
    """What changes the logits of one step, while the masks are computed."""

    def __init__(self, rows: Sequence[ResponseSoFar | None], bits: "Future[Bits] | None") -> None:
        self._rows = rows
        self._bits = bits

    def apply(self, logits_BV: Tensor) -> Tensor:
        """Wait for the masks; return the adjusted logits, which may be `logits_BV` itself, changed."""
        penalised = [(row, one.adjustment()) for row, one in enumerate(self._rows) if one is not None and one.penalises]
        if penalised:
            logits_BV = adjust_rows(logits_BV, penalised)
        if self._bits is None:
            return logits_BV
        limited = [row for row, one in enumerate(self._rows) if one is not None and one.grammar is not None]
        return mask_rows(logits_BV, limited, self._bits.result())


class GrammarMasks:
    """Computes the masks of a decoder's rows, on a thread of its own."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._writer = MaskWriter()

    def begin(self, rows: Sequence[ResponseSoFar | None]) -> PendingMasks:
        """Begin to compute the masks of the rows that have a grammar."""
        states: list[GrammarState] = [row.grammar for row in rows if row is not None and row.grammar is not None]
        if not states:
            return PendingMasks(rows, None)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="leyden-grammar")
        return PendingMasks(rows, self._thread.submit(self._writer.allowed, states))

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()
