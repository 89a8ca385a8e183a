"""Adapter contract, production capture: the same tree as in training, with or without the application's exporter."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract.shared import PROVIDER, STREAMED, AdapterTests, ContractModel, check_tree
from leyden.core.testing.capturing import captures, capturing_bench
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.span_tape import SpanTape

_CONTENT = (semconv.TOOL_ARGUMENTS, semconv.TOOL_RESULT)


class CaptureTests(AdapterTests):
    """The root of an agent's run is a rollout; no runner's recorder takes its spans."""

    @pytest.fixture
    def capturing(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayBench]:
        """A gateway that captures this process's agents by its environment variables."""
        with capturing_bench(ContractModel(), monkeypatch) as bench:
            yield bench

    @pytest.fixture
    def recording(self) -> Iterator[Adapter]:
        """The instrumented adapter."""
        adapter = self.make_adapter()
        adapter.instrument()
        yield adapter
        adapter.uninstrument()

    @STREAMED
    async def test_a_capture_holds_the_whole_tree_without_an_exporter(
        self, capturing: GatewayBench, recording: Adapter, stream: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)  # a process that has set up no SDK
        check_tree(await self._captured(capturing, stream=stream), 7)

    async def test_an_exporter_gets_what_it_gets_without_a_capture_and_the_store_the_same_tree(
        self, capturing: GatewayBench, recording: Adapter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tape, alone = SpanTape(), SpanTape()
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", tape.provider)
        spans = await self._captured(capturing)
        check_tree(spans, 7)
        assert _ids(tape) >= {(span.span_id, span.parent_id) for span in spans if semconv.FRAMEWORK in span.attributes}
        for exported in tape.spans():
            assert not any(name in (exported.attributes or {}) for name in _CONTENT)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", alone.provider)
        monkeypatch.delenv("LEYDEN_CAPTURE")
        attempt = await capturing.attempt("x")
        await self._call(f"{capturing.url}/a/{attempt.token}/v1")
        assert tape.tree() == alone.tree()

    async def _captured(self, bench: GatewayBench, *, stream: bool = False) -> Sequence[Span]:
        """Run the solver once, and return the stored spans of its rollout."""
        await self._call(PROVIDER, stream=stream)
        [(rollout, spans)] = await captures(bench)
        assert (rollout.status, rollout.attempt.metadata) == ("succeeded", {"capture": "complete"})
        return spans

    async def _call(self, base_url: str, *, stream: bool = False) -> None:
        agent = self.make_solver(base_url, stream=stream)
        assert self.answer(await asyncio.to_thread(self.call, agent, "double 7")) == "It is 14."


def _ids(tape: SpanTape) -> set[tuple[str, str | None]]:
    """Return span ids with parent ids, in hexadecimal digits."""
    return {
        (f"{span.context.span_id:016x}", f"{span.parent.span_id:016x}" if span.parent else None)
        for span in tape.spans()
        if span.context is not None
    }
