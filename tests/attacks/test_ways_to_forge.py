"""Three kinds of agents, twelve ways each to forge calls, rewards and ids: what the servers answer, and what trains.

The agent in Python has found its worker's token, the command has what it was given, and the foreign process has the
tokens of its attempt, for model calls and for the store. Each has learnt the ids of another attempt.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import forgers
import httpx
import msgspec
import pytest
from forgers import WAYS, Target

from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.store.base import LightningStore
from leyden.core.store.http.access import Access, machine_name, worker_token
from leyden.core.store.http.client import HttpStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import error_of, rewards_in, running
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.tracing.context import current_attempt
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import RunAddress, open_gateway
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[2] / "docs/attacks.md"
KINDS = ("Python agent", "command", "foreign process")
SERVED = "200"
MARKED = "200, marked"
"""Stored without the record, with the mark that `leyden why` counts."""

Outcomes = tuple[str, str, str]
TABLE: Mapping[str, Outcomes] = {
    "a span that bears the record of a call": (MARKED, "401", MARKED),
    "the same as JSON, ids as lists": (MARKED, "401", MARKED),
    "the record in a resource, an event and a link": (MARKED, "401", MARKED),
    "the record by OTLP": (MARKED, "401", MARKED),
    "the record among several calls together": (MARKED, "401", MARKED),
    "a record that says itself that nothing was removed": (MARKED, "401", MARKED),
    "the span of the real call again, with other ids": (SERVED, "401", SERVED),
    "a record in another attempt": ("403", "401", "403"),
    "a reward of another attempt": ("403", "401", "403"),
    "a reward of its own": (SERVED, "401", "403"),
    "a call in the name of another attempt, by a made-up token": ("401", "401", "401"),
    "a call that goes on from another attempt's answer": ("400", "400", "400"),
}
"""For each way the outcome, in the order of `KINDS`. Whatever is served changes nothing that is learned from a call."""
MARKED_SPANS = {"Python agent": 8, "command": 0, "foreign process": 8}
"""Of an attempt's own spans: one for each way, three for the third."""


class Stage:
    """A run's server, what is known of its secrets, and an attempt that others attack."""

    def __init__(self, folder: Path, store: LightningStore, address: RunAddress, other: AttemptedRollout) -> None:
        self.folder, self.store, self.address = folder, store, address
        self.other = other.rollout_id, other.attempt.attempt_id
        self.other_answer = ""

    def target(self, own: tuple[str, str], store_token: str, name: str) -> Target:
        return Target(
            url=self.address.url,
            model_token=mint(self.address.key, *own),
            store_token=store_token,
            own=own,
            other=self.other,
            other_answer=self.other_answer,
            out=str(self.folder / f"{name}.json"),
        )


async def by_agent(stage: Stage, agent: Any, worker: tuple[str, str] | None = None) -> str:
    """Have a runner, with a worker's id and token, run the agent on a rollout; returns its id."""
    worker_id, token = worker or new_worker(stage)
    store = HttpStore(f"{stage.address.url}/store", token)
    rollout = await stage.store.enqueue_rollout("task", mode="train")
    async with running(store, agent, gateway_url=stage.address.url, key=None, worker_id=worker_id):
        [ended] = await stage.store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
    await store.close()
    assert ended.status == "succeeded", error_of(ended) if isinstance(ended, AttemptedRollout) else ended
    return ended.rollout_id


def new_worker(stage: Stage) -> tuple[str, str]:
    """The id and the token of a worker on a machine of its own."""
    machine = stage.address.machine().token
    worker_id = f"{machine_name(machine)}1"
    return worker_id, worker_token(machine, worker_id)


async def python_agent(stage: Stage) -> str:
    """It has found the token of its worker."""
    worker = new_worker(stage)

    def agent(task: Any) -> str:
        attempt = current_attempt()
        assert attempt is not None
        own = attempt.rollout_id, attempt.attempt_id
        return forgers.forge(stage.target(own, worker[1], "Python agent"))

    return await by_agent(stage, agent, worker)


COMMAND = """
import os, subprocess, sys
from urllib.parse import urlsplit
import msgspec
import forgers
target = forgers.Target(
    url="http://" + urlsplit(os.environ["OPENAI_BASE_URL"]).netloc,
    model_token=os.environ["OPENAI_API_KEY"],
    store_token=os.environ["OPENAI_API_KEY"],
    own=(os.environ["LEYDEN_ROLLOUT_ID"], os.environ["LEYDEN_ATTEMPT_ID"]),
    **msgspec.json.decode(sys.argv[1]),
)
forgers.forge(target)
"""


async def command(stage: Stage) -> str:
    script = stage.folder / "command.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(forgers.__file__).parent)!r})\n{COMMAND}")
    known = {
        "other": stage.other,
        "other_answer": stage.other_answer,
        "out": str(stage.folder / "command.json"),
    }
    said = json.dumps(known).replace("{", "{{").replace("}", "}}")
    return await by_agent(stage, CommandAgent([sys.executable, "-I", str(script), said]))


async def foreign_process(stage: Stage) -> str:
    rollout = await stage.store.start_rollout("task", mode="train")
    own = rollout.rollout_id, rollout.attempt.attempt_id
    target = stage.target(own, Access(stage.address.token).agent_token(*own), "foreign process")
    started = [sys.executable, "-I", forgers.__file__]
    await asyncio.to_thread(subprocess.run, started, input=msgspec.json.encode(target), check=True)
    await stage.store.update_attempt(*own, status="succeeded")
    return rollout.rollout_id


FORGERS: Mapping[str, Callable[[Stage], Awaitable[str]]] = dict(
    zip(KINDS, (python_agent, command, foreign_process), strict=True)
)


async def forged(folder: RunFolder, path: Path) -> dict[str, str]:
    """Have every kind of agent forge; returns their rollouts, after a look at what would train of each."""
    codec, rollouts = ByteCodec(), dict[str, str]()
    engine = ScriptedEngine(lambda _: codec.answer("hi"))
    policy = ServedPolicy(name="policy", engine=engine, codec=codec)
    async with AsyncExitStack() as closing:
        store = await folder.store_location.open()
        closing.push_async_callback(store.close)
        closing.push_async_callback(engine.close)
        address, gateway = await closing.enter_async_context(open_gateway(store, policy))
        other = await store.start_rollout("another task", mode="train")
        stage = Stage(path, store, address, other)
        headers = {"authorization": f"Bearer {mint(address.key, *stage.other)}"}
        async with httpx.AsyncClient(base_url=address.url, headers=headers) as client:
            answer = await client.post("/v1/responses", json={"model": "m", "input": "hello"})
            stage.other_answer = answer.raise_for_status().json()["id"]
        for kind, forge in FORGERS.items():
            rollouts[kind] = await forge(stage)
        await store.update_attempt(*stage.other, status="succeeded")
        await gateway.span_writer.flush()
        assert len(engine.log) == len(KINDS) + 1, "the engine has answered one call of each attempt"
        for kind, rollout_id in {**rollouts, "another": other.rollout_id}.items():
            await check(store, kind, rollout_id)
    return {**rollouts, "another": other.rollout_id}


async def check(store: LightningStore, kind: str, rollout_id: str) -> None:
    """Of the rollout's forgeries nothing trains; what its gateway recorded does, as it was."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    spans = (await store.query_spans(rollout_id)).items
    trajectory = assemble(rollout, rollout.attempt, spans, Selector())
    [transition] = trajectory.transitions
    assert bytes(transition.response_ids[:2].tolist()) == b"hi"
    refused = ["refused"] if kind in KINDS else []
    assert list(trajectory.untrained.values()) == refused, "the call that went on from another attempt's answer"
    marked = [span for span in spans if semconv.FORGED in span.attributes]
    assert len(marked) == MARKED_SPANS.get(kind, 0), [span.name for span in marked]
    if kind in ("command", "foreign process"):
        assert rewards_in(spans) == []


def shown(outcomes: Mapping[str, Outcomes]) -> str:
    """The table as Markdown."""
    rows = [("way", *KINDS), ("---",) * 4, *((way, *outcome) for way, outcome in outcomes.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def outcome(way: str, place: int, status: int) -> str:
    """A status as the table has it; what becomes of what was stored is looked at elsewhere."""
    wanted = TABLE[way][place]
    return wanted if status == 200 and wanted.startswith(SERVED) else str(status)


def test_nothing_forged_trains_and_leyden_why_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each attacker calls the model once, and then forges in every way that it knows."""
    folder = RunFolder.create(tmp_path / "runs", RunConfig(name="forged", policy="p", agent="a"), ["task"], {})
    rollouts = asyncio.run(forged(folder, tmp_path))
    found = {kind: json.loads((tmp_path / f"{kind}.json").read_text()) for kind in KINDS}
    seen = {way: tuple(outcome(way, place, found[kind][way]) for place, kind in enumerate(KINDS)) for way in WAYS}
    table = {way: (one[0], one[1], one[2]) for way, one in seen.items()}
    assert shown(table) == shown(TABLE)
    assert shown(TABLE) in PAGE.read_text()
    capsys.readouterr()
    assert run(["why", "forged", "--runs", str(tmp_path / "runs")]) == 0
    total = sum(MARKED_SPANS.values())
    assert f"{total}  a span had a model call record that no gateway wrote" in capsys.readouterr().out
    for kind, rollout_id in rollouts.items():
        assert run(["why", "forged", rollout_id, "--runs", str(tmp_path / "runs")]) == 0
        said = capsys.readouterr().out
        count = MARKED_SPANS.get(kind, 0)
        assert ("that no gateway wrote" in said) == (count > 0), said
        assert count in (0, 1) or f"{count} spans had a model call record" in said
        assert ("refused" in said) == (kind in KINDS), said
