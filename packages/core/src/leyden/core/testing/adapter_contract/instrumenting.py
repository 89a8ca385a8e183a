"""Adapter contract, instrumentation: installing and uninstalling are exact inverses, however often."""

# ruff: noqa: D102 (a test's name is its documentation)

from leyden.core.data import semconv
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import PROVIDER, AdapterTests, is_served
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.tracing.spans.export import Recorder


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
