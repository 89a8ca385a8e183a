"""This process as one whose agents are captured in production, for the length of a test. Knows nothing of frameworks.

The environment is set through pytest's `monkeypatch`, so that a test may change what it says, in any order of fixtures.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.testing.gateway_bench import Answer, GatewayBench
from leyden.core.tracing import context_propagation
from leyden.core.tracing.production import capture
from leyden.core.tracing.wire import gateway_pool, routing

TOKEN = "captures-only"
"""Opens rollouts at the gateway of `capturing_bench`."""
PATIENCE_SECONDS = 10.0
"""For which an agent waits for its rollout: a busy machine is no failure."""


@contextmanager
def forgetting_captures(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Give captures in the block time to begin; after it nothing is routed, and no gateway is remembered."""
    monkeypatch.setattr(capture, "BEGIN_SECONDS", PATIENCE_SECONDS)
    yield
    routing.uninstall()
    context_propagation.uninstall()
    vars(capture)["_told"].clear()
    vars(capture)["_gateways"].clear()


@contextmanager
def captured_by(gateway_url: str, monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> Generator[None]:
    """Have the environment say, in the block, that agents are captured by this gateway."""
    monkeypatch.setenv(capture.MODE, "production")
    monkeypatch.setenv(capture.GATEWAY_URL, gateway_url)
    monkeypatch.setenv(capture.TOKEN, token)
    with forgetting_captures(monkeypatch):
        yield


@contextmanager
def capturing_bench(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Generator[GatewayBench]:
    """Run a gateway that captures what agents do in the block, before a model that says what `answer` gives."""
    bench = GatewayBench(answer, capture_token=TOKEN)
    bench.start()
    with captured_by(bench.url, monkeypatch):
        yield bench
    bench.stop()


def wait_for_ends() -> None:
    """Wait until the gateway knows of every capture's end, as the end of a process does."""
    vars(capture)["_wait_for_ends"]()


async def captures(bench: GatewayBench) -> list[tuple[AttemptedRollout, list[Span]]]:
    """Return every rollout with its spans, once all have ended; the loop's connections to the gateway are closed."""
    await asyncio.to_thread(wait_for_ends)
    await gateway_pool.aclose()
    found: list[tuple[AttemptedRollout, list[Span]]] = []
    for rollout in (await bench.store.query_rollouts()).items:
        assert isinstance(rollout, AttemptedRollout), "the gateway started it"
        found.append((rollout, (await bench.store.query_spans(rollout.rollout_id)).items))
    return found
