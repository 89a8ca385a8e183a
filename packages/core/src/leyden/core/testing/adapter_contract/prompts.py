"""Adapter contract, prompts: the agent's prompts are found and replaced, and the agent does not see it."""

# ruff: noqa: D102 (a test's name is its documentation)

from typing import Any

from leyden.core.data import semconv
from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import PROVIDER, STREAMED, AdapterTests, is_served
from leyden.core.testing.gateway_bench import GatewayBench, turns
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
