"""Adapter contract, concurrency: every call has the right attempt, agent or node, and parent, by the engine's log."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio

from leyden.core.data import semconv
from leyden.core.data.reasons import NOT_SELECTED
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import (
    CROWD,
    PROVIDER,
    STREAMED,
    AdapterTests,
    Question,
    in_threads,
    is_served,
    operation,
    speakers,
)
from leyden.core.testing.gateway_bench import GatewayBench, turns
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.spans.export import Recorder
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector


class ConcurrencyTests(AdapterTests):
    """Many solvers and teams at once; the question of every attempt has a number of its own."""

    @STREAMED
    async def test_a_crowd_in_asyncio_keeps_every_call_apart(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder, stream: bool
    ) -> None:
        agents = self.make_solver(PROVIDER, stream=stream), self.make_team(PROVIDER, stream=stream)
        runs = [self.run(bench, adapter, agents[number % 2], f"double {1000 + number}") for number in range(2 * CROWD)]
        attempts = [attempt for _, attempt in await asyncio.gather(*runs)]
        await recorder.flush()
        await self._check_crowd(bench, attempts)

    @STREAMED
    async def test_a_crowd_in_threads_keeps_every_call_apart(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder, stream: bool
    ) -> None:
        agents = self.make_solver(PROVIDER, stream=stream), self.make_team(PROVIDER, stream=stream)
        attempts = [await bench.attempt(number) for number in range(2 * CROWD)]
        failures: list[Exception] = []

        def work(number: int) -> None:
            try:
                with open_attempt(attempts[number]):
                    self.call(adapter.fresh(agents[number % 2]), f"double {1000 + number}")
            except Exception as error:
                failures.append(error)

        await in_threads(2 * CROWD, work)
        assert not failures
        await recorder.flush()
        await self._check_crowd(bench, attempts)

    async def _check_crowd(self, bench: GatewayBench, attempts: list[OpenAttempt]) -> None:
        """Check that every call in the engine's log is one span.

        It must be under the attempt, the agent or node, and the parent that made the call.
        """
        log = {record.request_id: Question(turns(record.prompt_ids)) for record in bench.log}
        assert len(log) == len(bench.log) == 4 * CROWD
        seen: list[str] = []
        for number, attempt in enumerate(attempts):
            spans = await bench.spans(attempt)
            by_id = {span.span_id: span for span in spans}
            served = [span for span in spans if is_served(span)]
            assert len(served) == 2
            for span in served:
                call_id = str(span.attributes[semconv.CALL_ID])
                seen.append(call_id)
                question = log[call_id]
                assert question.number == 1000 + number
                assert (question.speaker == "solver") == (number % 2 == 0)
                assert question.speaker in speakers(span)
                parent = by_id[str(span.parent_id)]
                assert operation(parent) in ("chat", "invoke_agent") and not is_served(parent)
                assert speakers(parent) == speakers(span)
            if number % 2:
                assert len({str(span.parent_id) for span in served}) == 2
                await self._check_selection(bench, attempt, log)
        assert sorted(seen) == sorted(log)

    async def _check_selection(self, bench: GatewayBench, attempt: OpenAttempt, log: dict[str, Question]) -> None:
        """Check that `agent_match` makes transitions of one team member's calls only, and counts the other's."""
        rollout, spans = await bench.rollout(attempt), await bench.spans(attempt)
        for name in ("left", "right"):
            trajectory = assemble(rollout, rollout.attempt, spans, Selector(agent_match=f"^{name}$"))
            (chosen,) = trajectory.transitions
            assert name in (chosen.agent, chosen.node)
            assert log[chosen.call_id].speaker == name
            assert trajectory.excluded == {NOT_SELECTED: 1}
