"""Runs agents that keep everything in module-level objects, many rollouts at once, and counts what crosses over.

    python scripts/isolation_campaign.py --rollouts 2000

Each task has a word that no other task has. The scripted model repeats the last thing that the user said. A rollout
whose prompts, or whose result, hold another task's word is a crossing. Exit code 1 when there is one, or when a rollout
did not succeed.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.gateway_bench import turns
from leyden.core.testing.scripted_engine import Scripted, ScriptedAnswer, ScriptedEngine

AGENTS = Path(__file__).parent / "isolation" / "agents"
KINDS = tuple(sorted(path.stem for path in AGENTS.glob("*.py")))
CONTEXT = 1 << 17
KEY, TOKEN = bytes(range(32)), "opens-the-store"
WORD = re.compile(r"canary[0-9]{6}")


@dataclass(slots=True)
class Outcome:
    """What became of the rollouts of one agent."""

    kind: str
    rollouts: int = 0
    succeeded: int = 0
    calls: int = 0
    crossings: int = 0
    """Rollouts that hold a word of another task."""
    seconds: float = 0.0
    errors: dict[str, int] = field(default_factory=dict[str, int])
    examples: list[str] = field(default_factory=list[str])


async def run_kind(kind: str, rollouts: int, concurrency: int, delay: float) -> Outcome:
    """Run `rollouts` tasks with the agent `kind`, `concurrency` at once."""
    outcome = Outcome(kind, rollouts)
    async with served(delay) as (store, url):
        spec = WorkerSpec(
            agent=f"{AGENTS / kind}.py:ask",
            store_url=f"{url}/store",
            store_token=TOKEN,
            gateway_url=url,
            key=KEY.hex(),
            concurrency=concurrency,
        )
        tasks = [
            EnqueueRollout(
                rollout_id=f"{kind}-{number}",
                input={"question": f"What is canary{number:06d}?"},
                mode="test",
                config=RolloutConfig(timeout_seconds=120.0),
            )
            for number in range(rollouts)
        ]
        pool = WorkerPool(spec, 1)
        await pool.start()
        began = time.monotonic()
        try:
            await store.enqueue_many_rollouts(tasks)
            await _wait(store, [task.rollout_id or "" for task in tasks], pool)
        finally:
            outcome.seconds = time.monotonic() - began
            await pool.stop()
        for task in tasks:
            await _look(store, task.rollout_id or "", outcome)
    return outcome


@asynccontextmanager
async def served(delay: float) -> AsyncGenerator[tuple[MemoryStore, str]]:
    """A store and the URL of a gateway, whose model repeats after `delay` seconds what the user said last."""
    codec, store = ByteCodec(), MemoryStore()

    def answer(request: GenerateRequest) -> Scripted:
        said = [turn.text for turn in turns(request.prompt_ids) if turn.role == "user"]
        return ScriptedAnswer(ids=codec.answer(f"You said: {said[-1] if said else 'nothing'}"), delay=delay)

    engine = ScriptedEngine(answer, model=ModelInfo(name="scripted", context_length=CONTEXT, vocab_size=VOCABULARY))
    stores = store_app(store, authorize=lambda token: token == TOKEN)
    policy = ServedPolicy(name="policy", engine=engine, codec=codec)
    gateway = Gateway(store, policy, KEY, mounts={"/store": stores})
    server = GatewayServer(gateway.app)
    url = await server.start()
    try:
        yield store, url
    finally:
        await server.stop()
        await engine.close()
        await store.close()


async def _wait(store: MemoryStore, ids: list[str], pool: WorkerPool) -> None:
    ended = 0
    while ended < len(ids):
        ended = len(await store.wait_for_rollouts(rollout_ids=ids, timeout=2.0))
        await pool.check()


async def _look(store: MemoryStore, rollout_id: str, outcome: Outcome) -> None:
    rollout = await store.get_rollout_by_id(rollout_id)
    assert isinstance(rollout, AttemptedRollout), "it was run"
    spans = (await store.query_spans(rollout_id)).items
    outcome.succeeded += rollout.status == "succeeded"
    if rollout.status != "succeeded":
        error: dict[str, Any] = rollout.attempt.metadata.get("error", {})
        reason = f"{rollout.attempt.status}: {error.get('type')}: {str(error.get('message'))[:120]}"
        outcome.errors[reason] = outcome.errors.get(reason, 0) + 1
    outcome.calls += sum(semconv.CALL_ID in span.attributes for span in spans)
    own = WORD.findall(str(rollout.input))
    foreign = sorted({word for span in spans for word in WORD.findall(_text(span))} - set(own))
    if foreign:
        outcome.crossings += 1
        outcome.examples.append(f"{rollout_id} holds {', '.join(foreign[:3])}")


def _text(span: Span) -> str:
    values = [span.attributes.get(name) for name in (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.RESULT)]
    return " ".join(str(value) for value in values if value)


async def main(arguments: list[str]) -> int:
    """Run the campaign and print a line for each agent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be given several times; default: all")
    parser.add_argument("--rollouts", type=int, default=200, help="of each kind")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds before the model answers")
    parser.add_argument("--json", type=Path, help="file for the outcomes")
    given = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    for kind in given.kind or KINDS:
        outcome = await run_kind(kind, given.rollouts, given.concurrency, given.delay)
        outcomes.append(outcome)
        print(
            f"{kind:8} {outcome.succeeded:6,} of {outcome.rollouts:,} succeeded  {outcome.calls:7,} calls  "
            f"{outcome.crossings:5,} crossings  {outcome.seconds:6.1f} s",
            flush=True,
        )
        for reason, count in sorted(outcome.errors.items(), key=lambda item: -item[1])[:3]:
            print(f"         {count} x {reason}")
        for example in outcome.examples[:3]:
            print(f"         {example}")
    if given.json:
        given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    return int(any(outcome.crossings or outcome.succeeded < outcome.rollouts for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
