"""Adapter contract for agents without a framework: every call is recorded once, under its attempt, and nothing else."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import (
    CROWD,
    PROVIDER,
    STREAMED,
    AgentTests,
    Question,
    in_threads,
    is_served,
)
from leyden.core.testing.gateway_bench import GatewayBench, turns
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.spans.export import Recorder
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector


class PlainTests(AgentTests):
    """The question of every attempt has a number of its own; the solver makes two model calls."""

    @STREAMED
    async def test_every_call_is_recorded_once_and_nothing_else_is(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder, stream: bool
    ) -> None:
        result, attempt = await self.run(bench, adapter, self.make_solver(PROVIDER, stream=stream), "double 7")
        assert self.answer(result) == "It is 14."
        await recorder.flush()
        spans = await bench.spans(attempt)
        assert all(is_served(span) for span in spans)
        assert [span.attributes[semconv.CALL_ID] for span in spans] == [record.request_id for record in bench.log]
        assert {(span.parent_id, span.attributes.get(semconv.AGENT_NAME)) for span in spans} == {(None, None)}
        rollout = await bench.rollout(attempt)
        trajectory = assemble(rollout, rollout.attempt, spans, Selector())
        assert [list(call.response_ids) for call in trajectory.transitions] == [r.response_ids for r in bench.log]

    async def test_a_failing_model_is_recorded(self, bench: GatewayBench, adapter: Adapter, recorder: Recorder) -> None:
        attempt = await bench.attempt("x")
        raised: Exception | None = None
        with open_attempt(attempt):
            try:
                await adapter.run(self.make_solver(PROVIDER, stream=False), {"question": "broken 1"}, {})
            except Exception as error:
                raised = error
        assert raised is not None
        assert "500" in str(raised) or "broken" in str(raised)
        await recorder.flush()
        assert [span.status.code for span in await bench.spans(attempt)] == ["error"]

    async def test_a_retry_of_the_client_is_the_same_call(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        agent = self.make_solver(PROVIDER, stream=False, retries=2)
        result, attempt = await self.run(bench, adapter, agent, "flaky 7")
        assert self.answer(result) == "It is 14."
        await recorder.flush()
        served = sorted(await bench.spans(attempt), key=lambda span: span.start_time)
        assert [span.status.code for span in served].count("error") == 1
        fingerprints = [span.attributes[semconv.FINGERPRINT] for span in served]
        assert fingerprints[0] == fingerprints[1] != fingerprints[2]

    async def test_a_stream_that_is_left_half_way_is_recorded_as_it_was(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        attempt = await self.leave_half_way(bench)
        [call] = await bench.spans(attempt)
        assert is_served(call)
        await self._check_undisturbed(bench, adapter, recorder)

    async def test_a_run_that_is_cancelled_ends_and_the_next_one_is_not_disturbed(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        agent = self.make_solver(PROVIDER, stream=False)
        task, attempt = await self.cancel_half_way(bench, adapter, agent)
        assert task.cancelled()
        assert attempt.closed.is_set()
        await self._check_undisturbed(bench, adapter, recorder)

    async def _check_undisturbed(self, bench: GatewayBench, adapter: Adapter, recorder: Recorder) -> None:
        result, later = await self.run(bench, adapter, self.make_solver(PROVIDER, stream=False), "double 8")
        assert self.answer(result) == "It is 16."
        await recorder.flush()
        assert [span.status.code == "error" for span in await bench.spans(later)] == [False, False]

    # --- Many at once

    async def test_a_crowd_in_asyncio_keeps_every_call_apart(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        agents = [self.make_solver(PROVIDER, stream=stream) for stream in (False, True)]
        runs = [self.run(bench, adapter, agents[number % 2], f"double {1000 + number}") for number in range(2 * CROWD)]
        ended = await asyncio.gather(*runs)
        await recorder.flush()
        await self._check_crowd(bench, [result for result, _ in ended], [attempt for _, attempt in ended])

    async def test_a_crowd_in_threads_keeps_every_call_apart(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        agents = [self.make_solver(PROVIDER, stream=stream) for stream in (False, True)]
        attempts = [await bench.attempt(number) for number in range(2 * CROWD)]
        results: list[Any] = [None] * len(attempts)

        def work(number: int) -> None:
            """Run one attempt on an event loop of its own."""
            task = {"question": f"double {1000 + number}"}
            try:
                with open_attempt(attempts[number]):
                    results[number] = asyncio.run(adapter.run(adapter.fresh(agents[number % 2]), task, {}))
            except Exception as error:
                results[number] = error

        await in_threads(2 * CROWD, work)
        assert not [result for result in results if isinstance(result, Exception)]
        await recorder.flush()
        await self._check_crowd(bench, results, attempts)

    async def _check_crowd(self, bench: GatewayBench, results: list[Any], attempts: list[OpenAttempt]) -> None:
        """Check that every call in the engine's log is one span of the right attempt, with the right result."""
        log = {record.request_id: Question(turns(record.prompt_ids)) for record in bench.log}
        assert len(log) == len(bench.log) == 4 * CROWD
        seen: list[str] = []
        for number, (result, attempt) in enumerate(zip(results, attempts, strict=True)):
            assert self.answer(result) == f"It is {2 * (1000 + number)}."
            spans: list[Span] = await bench.spans(attempt)
            assert len(spans) == 2
            for span in spans:
                call_id = str(span.attributes[semconv.CALL_ID])
                seen.append(call_id)
                assert log[call_id].number == 1000 + number
        assert sorted(seen) == sorted(log)
