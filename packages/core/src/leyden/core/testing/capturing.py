"""Production capture in tests: makes this process one whose agents are captured, for the length of a block.

The environment is set through pytest's `monkeypatch`, so that a test may change it, with fixtures in any order.
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
"""Token with which a client opens rollouts at the gateway of `capturing_bench`."""
PATIENCE_SECONDS = 10.0
"""Seconds for which an agent waits for its rollout, so that a busy machine causes no failure."""


@contextmanager
def forgetting_captures(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Give captures in the block more time to begin; afterwards, remove routing and all cached gateways."""
    monkeypatch.setattr(capture, "BEGIN_SECONDS", PATIENCE_SECONDS)
    yield
    routing.uninstall()
    context_propagation.uninstall()
    vars(capture)["_logged"].clear()
    vars(capture)["_gateways"].clear()


@contextmanager
def captured_by(gateway_url: str, monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> Generator[None]:
    """Set the environment variables, in the block, with which agents are captured by this gateway."""
    monkeypatch.setenv(capture.MODE, "production")
    monkeypatch.setenv(capture.GATEWAY_URL, gateway_url)
    monkeypatch.setenv(capture.TOKEN, token)
    with forgetting_captures(monkeypatch):
        yield


@contextmanager
def capturing_bench(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Generator[GatewayBench]:
    """Run a gateway that captures the agents in the block, with a model whose output is `answer`."""
    bench = GatewayBench(answer, capture_token=TOKEN)
    bench.start()
    with captured_by(bench.url, monkeypatch):
        yield bench
    bench.stop()


def wait_for_ends() -> None:
    """Wait until the gateway has received the end of every capture, as at the end of a process."""
    vars(capture)["_wait_for_ends"]()


async def captures(bench: GatewayBench) -> list[tuple[AttemptedRollout, list[Span]]]:
    """Return every rollout with its spans, once all have ended; also closes the event loop's gateway connections."""
    await asyncio.to_thread(wait_for_ends)
    await gateway_pool.aclose()
    found: list[tuple[AttemptedRollout, list[Span]]] = []
    for rollout in (await bench.store.query_rollouts()).items:
        assert isinstance(rollout, AttemptedRollout), "the gateway started it"
        found.append((rollout, (await bench.store.query_spans(rollout.rollout_id)).items))
    return found
