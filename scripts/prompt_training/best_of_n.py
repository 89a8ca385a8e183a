"""`BestOfN`: the baseline of searches for prompts, which writes prompts without feedback and keeps the best.

It spends the same number of rollouts as a search, all of them on the validation tasks.
"""

from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.base import PromptAlgorithm, PromptAlgorithmOptions, PromptSession
from leyden.core.algorithm.prompts.components import Texts
from leyden.core.errors import UsageError

REQUEST = """An assistant has this instruction:
```
{text}
```
{description} Write a better instruction. Provide it within ``` blocks."""
MOST_CALLS = 3
"""Calls of the reflection model for each prompt that can be used."""


class BestOfNOptions(PromptAlgorithmOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the baseline; `budget.rollouts` must be given."""


class BestOfN(PromptAlgorithm):
    """Writes as many prompts as the budget can evaluate on the validation tasks, and publishes the best."""

    name = "best_of_n"
    Config = BestOfNOptions

    async def search(self, session: PromptSession) -> None:
        """Take the only step of the search; rollouts that are left are spent on the best two, as in every search."""
        rollouts = self.options.budget.rollouts
        if rollouts is None:
            raise UsageError("best_of_n needs budget.rollouts")
        session.step = 1
        count = rollouts // len(session.validation)
        tried = [session.start.texts]
        for _ in range(MOST_CALLS):
            tried += await self._written(session, count - len(tried))
        found = await session.runner.evaluate([(texts, session.validation) for texts in tried])
        session.note_scores(session.start, found[0])
        for texts, scored in zip(tried[1:], found[1:], strict=True):
            session.note_scores(await session.add(texts, origin="reflection", parents=[0]), scored)
        await session.end_early(f"{len(tried)} prompts were evaluated", {"candidates": len(session.search.candidates)})

    async def _written(self, session: PromptSession, count: int) -> list[Texts]:
        """Return up to so many new prompts: those of the answers that can be used."""
        start, components = session.start.texts, session.components
        names = [name for _ in range(count) for name in components.names]
        requests: list[list[Message]] = [
            [
                {
                    "role": "user",
                    "content": REQUEST.format(text=start[name], description=components.description(name)),
                }
            ]
            for name in names
        ]
        answers = [_extracted(answer) for answer in await session.reflector.complete(requests)]
        size = len(components.names)
        written = [
            start
            | {name: text for name, text in zip(components.names, answers[first : first + size], strict=True) if text}
            for first in range(0, len(answers), size)
        ]
        return [texts for texts in written if texts != start and not session.problem(texts, start)]


def _extracted(answer: str | None) -> str:
    """Return the text within the ``` blocks of an answer; the whole answer without any."""
    parts = (answer or "").split("```")
    return (parts[1].removeprefix("\n") if len(parts) > 2 else parts[0]).strip()
