"""`WatchedModel`: a language model of an algorithm whose calls are a phase of the run."""

import time
from collections.abc import Sequence

from leyden.core.algorithm.language_model import Completion, LanguageModel, Message
from leyden.core.trainer.context.run_journal import RunJournal

PHASE = "reflection"


class WatchedModel(LanguageModel):
    """Calls `model`. While a call is under way, the display shows the phase, and its time is counted once."""

    def __init__(self, model: LanguageModel, journal: RunJournal) -> None:
        self.name, self.is_priced = model.name, model.is_priced
        self._model, self._journal = model, journal
        self._calls, self._began = 0, 0.0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Return the model's answer; raises ModelCallError if there is none."""
        if not self._calls:
            self._began = time.monotonic()
            self._journal.display.phase(PHASE)
        self._calls += 1
        try:
            return await self._model.complete(messages)
        finally:
            self._calls -= 1
            if not self._calls:
                self._journal.add_seconds(PHASE, time.monotonic() - self._began)

    async def close(self) -> None:
        """Close the model's connections."""
        await self._model.close()
