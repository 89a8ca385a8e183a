"""Adapter contract, prompts: the agent's prompts are found and replaced, and the agent does not see it."""

# ruff: noqa: D102 (a test's name is its documentation)

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from leyden.core.data import semconv
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.prompts.template import TextTemplate
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import (
    PROVIDER,
    STREAMED,
    UNLUCKY,
    AdapterTests,
    BenchTests,
    is_served,
)
from leyden.core.testing.adapter_contract.visible import Visible, difference
from leyden.core.testing.gateway_bench import GatewayBench, turns
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.spans.export import Recorder
from leyden.core.trajectory.prompts.discover import FoundPrompts, RecordedCalls, find_prompts

ADDED = "Please: "


class PromptTests(AdapterTests):
    """Prompts of the solver, by its name."""

    async def prompts_of(self, bench: GatewayBench, adapter: Adapter, agent: Any, *texts: str) -> FoundPrompts:
        """Run `agent` on each text; return the prompts in its calls."""
        recorded: list[RecordedCalls] = []
        for text in texts:
            _, attempt = await self.run(bench, adapter, agent, text)
            spans = [span for span in await bench.spans(attempt) if is_served(span)]
            recorded.append(RecordedCalls(task={"question": text}, spans=spans))
        return find_prompts(recorded)

    @STREAMED
    async def test_prompts_are_found_and_replaced_and_the_agent_stays_as_it_is(
        self, bench: GatewayBench, adapter: Adapter, stream: bool
    ) -> None:
        agent = self.make_solver(PROVIDER, stream=stream)
        found = await self.prompts_of(bench, adapter, agent, "double 7", "double 8", "double 9")
        assert found.calls == 6
        components = found.edits.components
        assert {one.agent for one in components} == {"solver"}
        [tool] = [one for one in components if one.tool == "double"]
        assert tool.calls >= 3  # a call that reports on a tool may offer none

        await bench.store.add_resources({"prompts": _edited(found.edits)})
        result, attempt = await self.run(bench, adapter, self.make_solver(PROVIDER, stream=stream), "double 9")
        assert self.answer(result) == "It is 18."
        own, new = ([turns(record.prompt_ids) for record in bench.log[at : at + 2]] for at in (4, 6))
        for texts, others in zip(new, own, strict=True):
            assert ADDED in str(texts)
            assert [(role, text.replace(ADDED, "")) for role, text in texts] == others
        served = [span for span in await bench.spans(attempt) if is_served(span)]
        assert len(served) == 2 and all(semconv.PROMPT_EDITS in span.attributes for span in served)


def _edited(edits: PromptEdits) -> PromptEdits:
    return edits.with_texts({name: f"{ADDED}{text}" for name, text in edits.texts.items()})


MARK = "Rewritten"
GOOD_QUESTIONS = ("double 7", "double 8")
BAD_QUESTIONS = (f"double {UNLUCKY}", "broken 1")
"""Questions at which the tool raises ValueError, and the model fails."""


class ReplacedPromptsContract(BenchTests, ABC):
    """Replaced or not, an agent has the same objects, history, streams, events, errors and calls.

    The same unmodified agent runs with its own prompts, and again with another text for each of its components. All
    that `observe` returns must then be equal, except for ids, times and numbers of tokens.
    """

    roles: ClassVar[frozenset[str]]
    """Roles of the components that must be found."""

    @abstractmethod
    async def observe(self, question: str, seen: list[Any], *, stream: bool) -> None:
        """Run a fresh agent on a question, and add to `seen` all that its author can see, in order.

        It calls its provider's own URL, and streams if `stream` is set. An error of the agent may be raised.
        """

    def instrumented(self) -> AbstractContextManager[None]:
        """Instrument the adapter of the agent's framework in the block; without an adapter, nothing."""
        return nullcontext()

    @STREAMED
    async def test_an_agent_sees_the_same_whether_its_prompts_are_replaced_or_not(
        self, bench: GatewayBench, recorder: Recorder, stream: bool
    ) -> None:
        with self.instrumented():
            own, recorded = await self._observed(bench, stream)
            components = find_prompts(recorded).edits.components
            assert self.roles <= {one.role for one in components}, own
            read = bench.gateway.engine.requests
            count = len(read)
            edits = find_prompts(recorded).edits.with_texts({one.name: _rewritten(one) for one in components})
            await bench.store.add_resources({"prompts": edits})
            new, _ = await self._observed(bench, stream)
        assert new == own, difference(own, new)
        assert MARK not in str(own)
        assert len(read) == 2 * count
        prompts = [turns(request.prompt_ids) for request in read[count:]]
        for component in components:
            mark = f"{MARK} [{component.name}]"
            replaced = sum(mark in str(prompt) for prompt in prompts)
            assert replaced == component.calls, f"{component.name} is in {replaced} of {component.calls} calls"
        for prompt, before in zip(prompts, (turns(request.prompt_ids) for request in read), strict=False):
            assert [turn.role for turn in prompt] == [turn.role for turn in before]
            assert any(MARK in turn.text for turn in prompt)
            for turn, own_turn in zip(prompt, before, strict=True):
                assert MARK in turn.text or _without_ids(turn.text) == _without_ids(own_turn.text)

    async def _observed(self, bench: GatewayBench, stream: bool) -> tuple[list[Any], list[RecordedCalls]]:
        """Run the agent on each question; return what it saw, and its recorded calls."""
        seen_of_all: list[Any] = []
        recorded: list[RecordedCalls] = []
        for question in (*GOOD_QUESTIONS, *BAD_QUESTIONS):
            attempt = await bench.attempt({"question": question})
            seen: list[Any] = []
            with open_attempt(attempt):
                try:
                    await self.observe(question, seen, stream=stream)
                except Exception as error:
                    if question in GOOD_QUESTIONS:
                        raise
                    seen.append(error)
            assert seen
            seen_of_all.append(Visible().of(seen))
            spans = [span for span in await bench.spans(attempt) if is_served(span)]
            recorded.append(RecordedCalls(task={"question": question}, spans=spans))
        return seen_of_all, recorded


def _rewritten(component: PromptComponent) -> str:
    """Return a new text that has nothing of the own one but its variables, in reverse order."""
    names = reversed(TextTemplate.parse(component.text).names)
    return " ".join([f"{MARK} [{component.name}]", *(f"{{{name}}}" for name in names)])


def _without_ids(text: str) -> Any:
    return Visible().of(text)
