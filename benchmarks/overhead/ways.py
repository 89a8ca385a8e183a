"""The ways to record an agent that are compared. What they record goes to something that keeps nothing."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from overhead import model
from overhead.driver import Driver, instrumented, named


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured, being recorded in one way."""

    call: Callable[[], Awaitable[object]]
    run: Callable[[], Awaitable[object]]
    settle: Callable[[], Awaitable[object]]
    """Ends when all that is recorded so far has been passed on."""


@dataclass(slots=True)
class Tally:
    """How many spans were recorded."""

    spans: int = 0


tally = Tally()


def _provider() -> Any:
    """A provider of OpenTelemetry's own, whose spans end in a processor that only counts them."""
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

    class Counting(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            tally.spans += 1

    provider = TracerProvider()
    provider.add_span_processor(Counting())
    return provider


async def _count(spans: list[Any]) -> None:
    """Take our spans, and keep nothing."""
    tally.spans += len(spans)


async def _nothing() -> None:
    """Nothing waits to be passed on."""


def _unchanged(driver: Driver) -> Work:
    return Work(driver.call, driver.run, _nothing)


@asynccontextmanager
async def bare(driver: Driver) -> AsyncGenerator[Work]:
    """Nothing records."""
    yield _unchanged(driver)


@asynccontextmanager
async def span(driver: Driver) -> AsyncGenerator[Work]:
    """A span of OpenTelemetry's around each answer of the model, with the usual attributes, and nothing else."""
    tracer = _provider().get_tracer("bench")
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": model.MODEL,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.input_tokens": model.TOKENS["input_tokens"],
        "gen_ai.usage.output_tokens": model.TOKENS["output_tokens"],
    }
    model.around.append(lambda: tracer.start_as_current_span(f"chat {model.MODEL}", attributes=attributes))
    yield _unchanged(driver)


@asynccontextmanager
async def leyden(driver: Driver) -> AsyncGenerator[Work]:
    """The adapter as in a runner: it runs the agent in attempts, and the recorder turns spans into ours."""
    from leyden.core.tracing import context_propagation
    from leyden.core.tracing.context import OpenAttempt, open_attempt
    from leyden.core.tracing.spans.export import start_recording

    def attempt() -> OpenAttempt:
        gateway = "http://127.0.0.1:1"
        return OpenAttempt(rollout_id="r", attempt_id="a", token="t", gateway_url=gateway, trace_id="1" * 32)

    adapter = named(driver.ADAPTER)()
    task = {"question": model.PROMPT}

    async def run() -> None:
        with open_attempt(attempt()):
            adapter.check(driver.AGENT, task)
            await adapter.run(adapter.fresh(driver.AGENT), task, {})

    recorder = await start_recording(_count)
    context_propagation.install()
    adapter.instrument()
    with open_attempt(attempt()):
        yield Work(driver.call, run, recorder.flush)
    adapter.uninstrument()
    context_propagation.uninstall()
    await recorder.stop()


@asynccontextmanager
async def leyden_otel(driver: Driver) -> AsyncGenerator[Work]:
    """The adapter's instrumentor alone, writing to a provider of the user's, as the others do."""
    instrumented(named(driver.INSTRUMENTOR)(), _provider())
    yield _unchanged(driver)


@asynccontextmanager
async def openinference(driver: Driver) -> AsyncGenerator[Work]:
    """OpenInference's instrumentor, as it comes."""
    instrumented(named(driver.OPENINFERENCE)(), _provider())
    yield _unchanged(driver)


@asynccontextmanager
async def agentops(driver: Driver) -> AsyncGenerator[Work]:
    """AgentOps, its exporter replaced; a session is open."""
    from opentelemetry import trace

    own = named("agentops.sdk.core:tracer")
    provider = own.provider = _provider()
    own._initialized = True  # what `agentops.init` does, which would also ask its servers
    trace.set_tracer_provider(provider)
    driver.agentops(provider)
    yield _unchanged(driver)


WAYS = {
    "bare": bare,
    "span": span,
    "leyden": leyden,
    "leyden-otel": leyden_otel,
    "openinference": openinference,
    "agentops": agentops,
}
