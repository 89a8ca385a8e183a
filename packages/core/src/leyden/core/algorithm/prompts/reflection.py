"""`Reflector`: calls the reflection model, and keeps each answer on disk, so that a resumed run pays for none twice."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from leyden.core.algorithm.language_model import LanguageModel, Message, ModelCallError
from leyden.core.algorithm.prompts.budget import Budget
from leyden.core.algorithm.prompts.search import PromptSearch, Reflection
from leyden.core.errors import TrainingError

log = logging.getLogger(__name__)

MOST_FAILURES = 5
"""Calls in a row that may fail; the run then ends."""


class Reflector:
    """Calls `models`. `step` is the step that the next calls belong to, and `save` writes the search to disk.

    `finished` is the last step that an earlier session finished. Calls that failed after it are sent again.
    """

    def __init__(
        self,
        models: Sequence[LanguageModel],
        search: PromptSearch,
        budget: Budget,
        save: Callable[[], None],
        finished: int = 0,
    ) -> None:
        self._models, self._search, self._budget, self._save = models, search, budget, save
        self._step, self._next, self._failed = 1, 0, 0
        unfinished = {key: one for key, one in search.reflections.items() if int(key.partition(".")[0]) > finished}
        search.reflections = {key: one for key, one in search.reflections.items() if key not in unfinished}
        search.unused |= {key: one for key, one in unfinished.items() if one.text is not None}

    @property
    def step(self) -> int:
        """Step that the next calls belong to."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step, self._next = step, 0

    async def complete(self, conversations: Sequence[Sequence[Message] | None], model: int = 0) -> list[str | None]:
        """Return the answer of model number `model` to each conversation, all at once; None where it gave none.

        The calls of a step are numbered, so that a resumed run finds the answers it had. None as a conversation takes a
        number without a call: the numbers then do not depend on which earlier calls failed. Raises BudgetSpent if
        tokens or dollars are spent, and TrainingError after `MOST_FAILURES` failed calls in a row.
        """
        calls = {f"{self._step}.{self._next + index}": one for index, one in enumerate(conversations)}
        self._next += len(conversations)
        if any(one is not None and key not in self._search.reflections for key, one in calls.items()):
            self._budget.check()
        return await asyncio.gather(*(self._answer(key, one, self._models[model]) for key, one in calls.items()))

    async def _answer(self, key: str, messages: Sequence[Message] | None, model: LanguageModel) -> str | None:
        if messages is None:
            return None
        if (kept := self._search.unused.pop(key, None)) is not None:
            self._search.reflections[key] = kept
        if (known := self._search.reflections.get(key)) is not None:
            return known.text
        try:
            found = await model.complete(messages)
        except ModelCallError as error:
            self._failed += 1
            if self._failed >= MOST_FAILURES:
                raise TrainingError(f"{self._failed} calls of the reflection model failed in a row: {error}") from error
            log.warning("the reflection model gave no answer: %s", error)
            self._search.reflections[key] = Reflection(text=None, cost=0.0)
            self._save()
            return None
        self._failed = 0
        self._search.reflections[key] = Reflection(
            text=found.text,
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            cost=found.cost,
        )
        self._save()
        return found.text
