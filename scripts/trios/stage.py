"""Runs a crowd of rollouts of one system at once, as a runner would, and brings home what is known of them."""

import asyncio
import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.engine.base import EngineRecord
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.gateway_bench import GatewayBench, only_this_machine
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.spans.export import Recorder
from trios.model import answer, question


class Trio(Protocol):
    """A module `trios.on_<framework>`."""

    ADAPTER: str
    """`module:class`."""
    NODES: dict[str, str]
    """The node of each agent, where the framework has nodes."""

    def make(self) -> Any:
        """Return a system of the agents `planner`, `solver` and `critic`, of which the solver has the tool."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a finished campaign."""

    nodes: dict[str, str]
    log: list[EngineRecord]
    """The engine's own."""
    rollouts: dict[int, AttemptedRollout]
    spans: dict[int, list[Span]]
    """Everything that is stored of a rollout."""
    results: dict[int, str]
    """What the agents returned, or the error that they raised, as text."""
    looked_up: list[str]
    """Names of foreign hosts that somebody wanted to reach."""


def trio_for(framework: str) -> Trio:
    """Return the system of a framework."""
    return cast("Trio", importlib.import_module(f"trios.on_{framework}"))


async def run(framework: str, rollouts: int) -> Evidence:
    """Run so many rollouts of a framework's system at once, all of one and the same object."""
    trio = trio_for(framework)
    module, _, name = trio.ADAPTER.partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), name)()
    bench = GatewayBench(answer)
    bench.start()
    try:
        async with bench.recording() as recorder:
            adapter.instrument()
            try:
                return await _evidence(trio, adapter, bench, recorder, rollouts)
            finally:
                adapter.uninstrument()
    finally:
        bench.stop()


async def _evidence(trio: Trio, adapter: Adapter, bench: GatewayBench, recorder: Recorder, rollouts: int) -> Evidence:
    agent = trio.make()
    attempts = [await bench.attempt({"question": question(number)}) for number in range(rollouts)]
    with only_this_machine() as looked_up:
        done = await asyncio.gather(*(_one(adapter, agent, n, one) for n, one in enumerate(attempts)))
    await recorder.flush()
    return Evidence(
        nodes=trio.NODES,
        log=list(bench.log),
        rollouts={number: await bench.rollout(attempt) for number, attempt in enumerate(attempts)},
        spans={number: await bench.spans(attempt) for number, attempt in enumerate(attempts)},
        results=dict(enumerate(done)),
        looked_up=looked_up,
    )


async def _one(adapter: Adapter, agent: Any, number: int, attempt: OpenAttempt) -> str:
    with open_attempt(attempt):
        try:
            return str(await adapter.run(adapter.fresh(agent), {"question": question(number)}, {}))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
