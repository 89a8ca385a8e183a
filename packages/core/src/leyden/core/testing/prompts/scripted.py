"""`ScriptedPrompts`: an algorithm that tries prompts from a script and publishes the best, without weights.

For tests, and as the example of an algorithm without a policy: an optimizer differs only in where its candidates come
from. `leyden train --algorithm leyden.core.testing.prompts.scripted:ScriptedPrompts` runs it.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

import msgspec

from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.resources import PromptTemplate
from leyden.core.errors import UsageError


class ScriptedPromptsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The script."""

    prompt: str = "prompt"
    """Name of the prompt template that is replaced."""
    candidates: list[list[str]] = []
    """Templates that each step tries beside the published one; further steps try none."""
    repeats: int = 1
    """Rollouts of each task with each candidate."""
    held_out: str | None = None
    """Name of a held-out set whose tasks are used in place of training tasks."""


class ScriptedPrompts(Algorithm):
    """Evaluates the candidates of each step on the same tasks, all at once, and publishes the one that earns most.

    The published prompt stays when no candidate is better. What a candidate earned is kept in the algorithm's state.
    """

    name = "scripted_prompts"
    Config = ScriptedPromptsConfig
    needs_policy: ClassVar[bool] = False

    def __init__(self, config: ScriptedPromptsConfig) -> None:
        super().__init__(config)
        self._script = config

    async def run(self, context: Context) -> None:
        """Take the planned steps, continuing from where the last session stopped."""
        await context.restore()
        if context.step == 0:
            await context.evaluate("before")
        while context.step < context.steps:
            await self._take_step(context)
        await context.evaluate("after")

    async def _take_step(self, context: Context) -> None:
        tried = self._tried(context)
        ids = [await context.add_resources({self._script.prompt: prompt}) for prompt in tried]
        tasks = context.tasks if self._script.held_out is None else context.held_out[self._script.held_out]
        rows = context.next_rows() if self._script.held_out is None else range(len(tasks))
        requests = [
            RolloutRequest(row=row, held_out=self._script.held_out, resources_id=one, repeat=repeat)
            for one in ids
            for row in rows
            for repeat in range(self._script.repeats)
        ]
        results = await context.run_tasks(requests)
        scores = [mean_score([result for result in results if result.request.resources_id == one]) for one in ids]
        best = max(range(len(tried)), key=lambda index: (scores[index], -index))
        context.save_state([*(context.state or []), scores])
        await context.publish(resources={self._script.prompt: tried[best]})
        context.log({"reward": scores[best], "candidates": len(tried)})
        await context.checkpoint()

    def _tried(self, context: Context) -> list[PromptTemplate]:
        published = context.resources.get(self._script.prompt)
        if not isinstance(published, PromptTemplate):
            raise UsageError(f"the run has no prompt template {self._script.prompt!r}; give --prompt NAME=FILE")
        texts = self._script.candidates[context.step] if context.step < len(self._script.candidates) else []
        return [published, *(PromptTemplate(template=text, engine=published.engine) for text in texts)]


def mean_score(results: Sequence[RolloutResult]) -> float:
    """Return the mean score of the results that have one; 0 if none has."""
    return fmean([result.score for result in results if result.score is not None] or [0.0])
