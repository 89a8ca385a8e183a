"""Sessions of a search over a context in memory, for tests of algorithms that train prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from leyden.core.algorithm.language_model import Completion, LanguageModel, Message
from leyden.core.algorithm.prompts.base import PromptAlgorithmOptions, PromptSession
from leyden.core.data.resources import PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.testing.prompts.hints import judged
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext


def hinted(resources: Mapping[str, Resource], task: Task) -> tuple[float, str]:
    """Reward of the tasks of `testing.prompts.hints`, without an agent."""
    prompt = resources["prompt"]
    assert isinstance(prompt, PromptTemplate)
    assert isinstance(task, dict)
    return judged(prompt.format(**task))


def texts_published(context: ScriptedPromptContext) -> list[str]:
    """The prompt of each version."""
    prompts = [version["prompt"] for version in context.versions]
    return [prompt.template for prompt in prompts if isinstance(prompt, PromptTemplate)]


class Answering(LanguageModel):
    """A model that numbers its answers; it gives none to a conversation that is in `fails`."""

    name = "answering"
    is_priced = True

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.fails: set[str] = set()
        self.closed = 0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Answer with the number of the call."""
        from leyden.core.algorithm.language_model import ModelCallError

        self.seen.append(messages[-1]["content"])
        if messages[-1]["content"] in self.fails:
            raise ModelCallError("no answer")
        return Completion(
            text=f"answer {len(self.seen)} to {messages[-1]['content']}", input_tokens=2, output_tokens=1, cost=0.1
        )

    async def close(self) -> None:
        """Count the call."""
        self.closed += 1


def session_of(
    tasks: Sequence[Task] = ("a", "b", "c", "d"), *, state: Any = None, step: int = 0, **options: Any
) -> PromptSession:
    """Return a session whose rollouts earn the length of their prompt, in hundredths."""

    def reward(resources: Mapping[str, Resource], _task: Task) -> float:
        prompt = resources["prompt"]
        assert isinstance(prompt, PromptTemplate)
        return len(prompt.template) / 100

    context = ScriptedPromptContext(
        tasks, {"prompt": PromptTemplate(template="{q}")}, reward, held_out={"val": ["x", "y"]}, steps=9
    )
    context.state, context.step = state, step
    return PromptSession(context, PromptAlgorithmOptions(**options), [Answering()])
