"""Adapter contract, structure: one tree of spans per attempt, also with failures, retries and aborted streams."""

# ruff: noqa: D102 (a test's name is its documentation)

from contextlib import suppress

from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import (
    PROVIDER,
    STREAMED,
    UNLUCKY,
    AdapterTests,
    check_tree,
    is_served,
    operation,
    speakers,
)
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.spans.export import Recorder
from leyden.core.trajectory.outcomes import outcomes_by_call, tool_outcomes


class StructureTests(AdapterTests):
    """The tree of spans, also after errors."""

    @STREAMED
    async def test_agent_calls_and_tool_form_one_tree(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder, stream: bool
    ) -> None:
        result, attempt = await self.run(bench, adapter, self.make_solver(PROVIDER, stream=stream), "double 7")
        assert self.answer(result) == "It is 14."
        await recorder.flush()
        spans = await bench.spans(attempt)
        assert {span.trace_id for span in spans} == {attempt.trace_id}
        assert {span.status.code for span in spans} <= {"unset", "ok"}
        check_tree(spans, 7)

    async def test_a_tools_outcome_belongs_to_the_call_that_asked_for_it(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        for number in (7, UNLUCKY):
            attempt = await bench.attempt("x")
            with open_attempt(attempt), suppress(Exception):  # the error may be raised, or returned to the model
                await adapter.run(self.make_solver(PROVIDER, stream=False), {"question": f"double {number}"}, {})
            await recorder.flush()
            spans = await bench.spans(attempt)
            outcomes = tool_outcomes(spans)
            (requested, *further) = outcomes.by_call.values()
            (double,) = requested
            assert not any(further) and not outcomes.unrequested
            assert (double.tool, double.status) == ("double", "failed" if number == UNLUCKY else "returned")
            assert number == UNLUCKY or "14" in str(double.result)
            credited = list(outcomes_by_call(spans).values())
            assert [(one.name, one.succeeded) for one in credited[0] if one.kind == "tool"] == [
                ("double", number != UNLUCKY)
            ]
            assert number == UNLUCKY or [one.text for one in credited[-1] if one.kind == "answer"] == ["It is 14."]

    async def test_the_tree_stands_without_the_frameworks_own_tracing(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        with self.without_own_tracing():
            _, attempt = await self.run(bench, adapter, self.make_solver(PROVIDER, stream=False), "double 7")
        await recorder.flush()
        check_tree(await bench.spans(attempt), 7)

    async def test_a_failing_tool_and_a_failing_model_are_recorded(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        for question in (f"double {UNLUCKY}", "broken 1"):
            attempt = await bench.attempt("x")
            raised = False
            with open_attempt(attempt):
                try:
                    await adapter.run(self.make_solver(PROVIDER, stream=False), {"question": question}, {})
                except Exception:
                    raised = True
            await recorder.flush()
            spans = [span for span in await bench.spans(attempt) if not is_served(span)]
            failed = {operation(span) for span in spans if span.status.code == "error"}
            if question == "broken 1":
                # Only spans of the framework itself can have failed.
                assert raised and {"invoke_agent"} <= failed
                assert [span.status.code for span in spans if operation(span) == "chat"] in ([], ["error"])
            else:
                assert "execute_tool" in failed
                assert raised == ("invoke_agent" in failed)
            assert all(span.end_time is not None for span in spans)

    async def test_a_retry_of_the_client_is_part_of_the_same_step(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        agent = self.make_solver(PROVIDER, stream=False, retries=2)
        result, attempt = await self.run(bench, adapter, agent, "flaky 7")
        assert self.answer(result) == "It is 14."
        await recorder.flush()
        spans = await bench.spans(attempt)
        served = sorted((span for span in spans if is_served(span)), key=lambda span: span.start_time)
        assert [span.status.code for span in served].count("error") == 1
        assert len({span.parent_id for span in served[:2]}) == 1
        assert {speakers(span)[0] for span in served} == {"solver"}

    async def test_a_stream_that_is_left_half_way_is_recorded_as_it_was(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        attempt = await self.leave_half_way(bench)
        await recorder.flush()
        served = [span for span in await bench.spans(attempt) if is_served(span)]
        assert {speakers(span)[0] for span in served} == {"solver"}
        _, later = await self.run(bench, adapter, self.make_solver(PROVIDER, stream=False), "double 8")
        await recorder.flush()
        check_tree(await bench.spans(later), 8)

    async def test_a_run_that_is_cancelled_ends_and_the_next_one_is_not_disturbed(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        agent = self.make_solver(PROVIDER, stream=False)
        task, attempt = await self.cancel_half_way(bench, adapter, agent)
        assert task.cancelled() or task.exception() is not None  # each framework has an exception of its own
        _, later = await self.run(bench, adapter, agent, "double 8")
        await recorder.flush()
        check_tree(await bench.spans(later), 8)
        assert all(span.end_time is not None for span in await bench.spans(attempt))
