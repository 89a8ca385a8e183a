"""Adapter contract, transparency: the agent gets the same answers and errors as without Leyden.

It gets nothing of another task, and no call leaves the process.
"""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
import subprocess
import sys
from collections.abc import Awaitable
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.errors import TaskError
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import PROVIDER, STREAMED, UNLUCKY, AdapterTests, AgentTests, is_served
from leyden.core.testing.gateway_bench import GatewayBench, only_this_machine, turns
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.spans.export import Recorder, start_recording
from leyden.core.tracing.wire import gateway_pool, routing

HEAVY = ("matplotlib", "plotext", "sqlalchemy", "torch", "transformers", "numpy", "starlette", "typer", "rich")
"""Libraries of Leyden that an application with recording only never needs."""


class TransparencyTests(AgentTests):
    """Recording must not change the agent's behaviour."""

    @STREAMED
    async def test_the_agent_gets_what_it_would_have_got(self, bench: GatewayBench, stream: bool) -> None:
        bare = await bench.attempt("bare")
        adapter = self.make_adapter()
        before = await asyncio.to_thread(
            self.call, self.make_solver(f"{bench.url}/a/{bare.token}/v1", stream=stream), "double 7"
        )
        recorder = await start_recording(bench.store.add_many_spans)
        routing.install(fail_closed=True)
        adapter.instrument()
        try:
            with only_this_machine() as hosts:
                result, _ = await self.run(bench, adapter, self.make_solver(PROVIDER, stream=stream), "double 7")
        finally:
            adapter.uninstrument()
            await gateway_pool.aclose()
            routing.uninstall()
            await recorder.stop()
        assert not hosts
        assert self.answer(result) == self.answer(before) == "It is 14."
        prompts = [turns(record.prompt_ids) for record in bench.log]
        assert prompts[2:] == prompts[:2]

    async def test_two_tasks_see_nothing_of_each_other(self, bench: GatewayBench, adapter: Adapter) -> None:
        agent = self.make_solver(PROVIDER, stream=False)
        for number in (101, 202):
            await self.run(bench, adapter, agent, f"double {number}")
        assert len(bench.log) == 4
        for record in bench.log[2:]:
            assert "101" not in str(turns(record.prompt_ids))


class InProcessTests(AgentTests):
    """Further requirements for an agent in the same process."""

    async def test_errors_of_tools_and_models_reach_the_agents_caller_unchanged(
        self, bench: GatewayBench, adapter: Adapter
    ) -> None:
        for question in (f"double {UNLUCKY}", "broken 1"):
            bare = await bench.attempt("bare")
            agent = self.make_solver(f"{bench.url}/a/{bare.token}/v1", stream=False)
            with open_attempt(bare):
                before = await _outcome(asyncio.to_thread(self.call, agent, question))
            after = await _outcome(self.run(bench, adapter, self.make_solver(PROVIDER, stream=False), question))
            if isinstance(before, Exception):
                assert type(after) is type(before)
                assert question == "broken 1" or str(after) == str(before)
            else:  # a framework that returns the tool's failure to the model
                assert question != "broken 1" and self.answer(after[0]) == self.answer(before)

    async def test_without_an_attempt_no_call_leaves_the_process(self, bench: GatewayBench, adapter: Adapter) -> None:
        with pytest.raises(Exception) as failure:
            await asyncio.to_thread(self.call, self.make_solver(PROVIDER, stream=False), "double 7")
        chain: list[BaseException] = [failure.value]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        assert any("no attempt is open" in str(error) for error in chain)
        assert not bench.log


class RecognisingTests(AdapterTests):
    """Recognition of an adapter's own agents, without loading its framework."""

    def test_it_knows_its_own_agents_and_no_others(self) -> None:
        adapter = self.make_adapter()
        for agent in (self.make_solver(PROVIDER, stream=False), self.make_team(PROVIDER, stream=False)):
            assert adapter.supports(agent)
            adapter.check(agent, {"question": "double 7"})
            with pytest.raises(TaskError, match="zzz"):
                adapter.check(agent, {"zzz": 1})
        assert not any(adapter.supports(other) for other in (None, 3, "agent", object(), self.answer, dict))

    def test_importing_the_adapter_loads_no_framework(self) -> None:
        code = (
            f"import sys, {self.package} as package\n"
            "from leyden.core.runner.adapters.registry import installed_adapters\n"
            "adapters = installed_adapters()\n"
            f"found = [name for name in {self.framework!r} if name in sys.modules]\n"
            "assert not found, found\n"
            "ours = [one for one in adapters if type(one).__module__.startswith(package.__name__ + '.')]\n"
            "assert len(ours) == 1, adapters\n"
            "assert not any(adapter.supports(3) for adapter in adapters)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_instrumenting_loads_no_framework(self) -> None:
        """In the way of `opentelemetry-instrument`, which does it in every process that it starts."""
        code = (
            "import sys\n"
            "from importlib.metadata import entry_points\n"
            "found = entry_points(group='opentelemetry_instrumentor')\n"
            f"[ours] = [entry for entry in found if entry.value.partition(':')[0] == {self.package!r}]\n"
            "ours.load()().instrument(skip_dep_check=True)\n"
            f"heavy = {self.framework!r} + {HEAVY!r}\n"
            "found = [name for name in heavy if name in sys.modules]\n"
            "assert not found, found\n"
            "ours.load()().uninstrument()\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


async def _outcome(work: Awaitable[Any]) -> Any:
    """Return the result of `work`, or the error that it raises."""
    try:
        return await work
    except Exception as error:
        return error


class InstrumentingTests(AdapterTests):
    """`instrument` and `uninstrument`."""

    async def test_instrumenting_twice_records_once_and_uninstrumenting_stops(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        agent = self.make_solver(PROVIDER, stream=False)
        counts: list[int] = []
        for change in (adapter.instrument, adapter.uninstrument, adapter.uninstrument, adapter.instrument):
            change()
            _, attempt = await self.run(bench, adapter, agent, "double 7")
            await recorder.flush()
            spans = [span for span in await bench.spans(attempt) if not is_served(span)]
            counts.append(sum(semconv.FRAMEWORK in span.attributes for span in spans))
        once = counts[0]
        assert once >= 2  # the agent and a tool, at least
        assert counts == [once, 0, 0, once]
