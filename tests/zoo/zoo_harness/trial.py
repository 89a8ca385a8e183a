"""One agent, run without Leyden, as `leyden dev` runs it, and as a training step does: what each of them saw."""

import asyncio
import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leyden.core.data.failure import failure_of
from leyden.core.data.rollout import EnqueueRollout, RolloutConfig, RolloutMode
from leyden.core.data.span import Span
from leyden.core.engine.base import EngineRecord
from leyden.core.errors import LeydenError
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.trainer.rollouts.recorded import RecordedRollout, read_rollout
from zoo_harness.agent_file import AgentFile, ZooAgent
from zoo_harness.gateway import STORE_TOKEN, Served, gateway
from zoo_harness.observing import task_key
from zoo_harness.provider import Provider, provider
from zoo_harness.reward import FOLDER, PATH, REFERENCE, STATE
from zoo_harness.script import Script
from zoo_harness.warm import Home, WarmServer, WarmWorker, environment

GROUP = 2
"""Rollouts of each task in the training step."""
TIMEOUT_SECONDS = 300.0
REWARD = f"{Path(__file__).parent / 'reward.py'}:score"


@dataclass
class Seen:
    """What was seen of one run of the agent on one task."""

    task: int
    result: Any = None
    state: Any = None
    error: dict[str, str] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Bodies of the model calls, as the model's side received them."""
    unanswered: list[str] = field(default_factory=list[str])
    printed: str = ""
    """Standard output."""
    written: str = ""
    """Standard error."""
    others: int = 0
    """Requests that are no model calls."""


@dataclass
class SeenRollout(Seen):
    """A rollout, with its record."""

    rollout_id: str = ""
    mode: RolloutMode = "test"
    recorded: RecordedRollout | None = None
    engine_log: list[EngineRecord] = field(default_factory=list[EngineRecord])

    @property
    def spans(self) -> list[Span]:
        """All spans of the rollout."""
        return [span for _, spans in self.recorded.attempts for span in spans] if self.recorded else []


@dataclass
class Trial:
    """Everything that was seen of an agent."""

    agent: ZooAgent
    author: list[Seen] = field(default_factory=list[Seen])
    dev: list[SeenRollout] = field(default_factory=list[SeenRollout])
    train: list[SeenRollout] = field(default_factory=list[SeenRollout])
    started: str | None = None
    """Why no worker could be started."""
    isolation: str = ""
    """What the worker says about processes for rollouts."""
    leaked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Model calls that went to the agent's own provider while Leyden ran it."""
    others: int = 0
    """Requests that are no model calls, while Leyden ran it."""
    log: str = ""
    """What the worker and its agents wrote."""


def variables(spec: AgentFile, agent: ZooAgent, url: str, certificate: tuple[str, str], folder: Path) -> dict[str, str]:
    """The environment of an agent's process: the same with Leyden and without."""
    found = {
        **environment(),
        "HOME": str(folder),
        "OPENAI_API_KEY": "sk-zoo-not-a-real-key",
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "SSL_CERT_FILE": certificate[0],
        "REQUESTS_CA_BUNDLE": certificate[0],
        FOLDER: str(folder),
        PATH: str(agent.path),
        REFERENCE: agent.reference,
        **spec.environment,
    }
    return found | ({STATE: spec.state} if spec.state else {})


def prepare(spec: AgentFile, folder: Path) -> Path:
    """Make a working folder with the agent's files."""
    folder.mkdir(parents=True)
    for name, text in spec.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


async def run_author(agent: ZooAgent, server: WarmServer, certificate: tuple[str, str], folder: Path) -> list[Seen]:
    """Run the agent on each of its tasks, each in a process of its own, without Leyden."""

    async def run(number: int, task: dict[str, Any]) -> Seen:
        work = prepare(agent.spec, folder / f"author-{number}")
        with provider(Script(agent.spec.model), agent.spec.hosts, certificate) as endpoint:
            return await _author(agent, server, certificate, work, endpoint, number, task)

    return await asyncio.gather(*(run(number, task) for number, task in enumerate(agent.spec.tasks)))


async def _author(
    agent: ZooAgent,
    server: WarmServer,
    certificate: tuple[str, str],
    work: Path,
    endpoint: Provider,
    number: int,
    task: dict[str, Any],
) -> Seen:
    out = work.with_suffix(".json")
    order = {
        "what": "author",
        "folder": str(work),
        "environment": variables(agent.spec, agent, endpoint.url, certificate, work),
        "path": str(agent.path),
        "reference": agent.reference,
        "author": agent.spec.author,
        "state": agent.spec.state,
        "task": task,
        "ports": endpoint.ports,
        "out": str(out),
    }
    with work.with_suffix(".out").open("w") as stdout, work.with_suffix(".err").open("w") as stderr:
        process = await server.fork(order, stdout, stderr)
    code = await asyncio.wait_for(process.wait(), TIMEOUT_SECONDS)
    printed, said = work.with_suffix(".out").read_text(), work.with_suffix(".err").read_text()
    seen = json.loads(out.read_text()) if out.exists() else {"error": {"type": "exit", "text": f"{code}: {said}"}}
    return Seen(
        task=number,
        result=seen.get("result"),
        state=seen.get("state"),
        error=seen["error"],
        requests=endpoint.chats,
        unanswered=endpoint.script.unanswered,
        printed=printed,
        written=said,
        others=len(endpoint.others),
    )


async def run_with_leyden(trial: Trial, server: WarmServer, certificate: tuple[str, str], folder: Path) -> None:
    """Run the agent on its tasks as `leyden dev` does, then a group of each of them at once, as training does."""
    agent = trial.agent
    work = prepare(agent.spec, folder / "leyden")
    log = folder / "worker.log"
    with ExitStack() as stack:
        endpoint = stack.enter_context(provider(Script(agent.spec.model), agent.spec.hosts, certificate))
        async with gateway(agent.spec.model) as served:
            environ = variables(agent.spec, agent, endpoint.url, certificate, work)
            WarmWorker.homes[served.key.hex()] = Home(server, environ, work)
            spec = WorkerSpec(
                agent=agent.reference,
                reward=REWARD,
                input=agent.spec.input and f"{agent.path}:{agent.spec.input}",
                store_url=f"{served.url}/store",
                store_token=STORE_TOKEN,
                gateway_url=served.url,
                key=served.key.hex(),
                log_file=str(log),
            )
            pool = WorkerPool(spec, 1)
            try:
                await pool.start()
                trial.dev = await _rollouts(trial, served, pool, work, "test", 1)
                trial.train = await _rollouts(trial, served, pool, work, "train", GROUP)
            except LeydenError as error:
                trial.started = str(error)
            finally:
                await pool.stop()
        trial.leaked, trial.others = endpoint.chats, len(endpoint.others)
    trial.log = log.read_text(errors="replace") if log.exists() else ""


async def _rollouts(
    trial: Trial, served: Served, pool: WorkerPool, work: Path, mode: RolloutMode, each: int
) -> list[SeenRollout]:
    tasks = [(number, task) for number, task in enumerate(trial.agent.spec.tasks) for _ in range(each)]
    config = RolloutConfig(timeout_seconds=TIMEOUT_SECONDS)
    requests = [
        EnqueueRollout(rollout_id=f"{mode}-{place}", input=task, mode=mode, config=config)
        for place, (_, task) in enumerate(tasks)
    ]
    await served.store.enqueue_many_rollouts(requests)
    ids = [request.rollout_id or "" for request in requests]
    while len(await served.store.wait_for_rollouts(rollout_ids=ids, timeout=2.0)) < len(ids):
        await pool.check()
    dumps = _dumps(work, trial)
    found: list[SeenRollout] = []
    for rollout_id, (number, _) in zip(ids, tasks, strict=True):
        found.append(await _seen(served, rollout_id, number, mode, dumps[number]))
    return found


async def _seen(
    served: Served, rollout_id: str, number: int, mode: RolloutMode, dumps: list[dict[str, Any]]
) -> SeenRollout:
    recorded = await read_rollout(served.store, rollout_id)
    failure = failure_of(recorded.attempts[-1][0]) if recorded.attempts else None
    mine = {request.request_id for request in served.engine.requests if request.rollout_id == rollout_id}
    dumped = dumps.pop(0) if failure is None and dumps else {}
    return SeenRollout(
        task=number,
        result=dumped.get("result"),
        state=dumped.get("state"),
        error=None if failure is None else {"type": failure.type, "text": failure.message, "kind": failure.kind},
        requests=served.bodies[rollout_id],
        unanswered=served.script(rollout_id).unanswered,
        rollout_id=rollout_id,
        mode=mode,
        recorded=recorded,
        engine_log=[record for record in served.engine.log if record.request_id in mine],
    )


def _dumps(work: Path, trial: Trial) -> list[list[dict[str, Any]]]:
    """What the reward function saw, by task, but for what it had seen in the dry run."""
    found: list[list[dict[str, Any]]] = []
    for number, task in enumerate(trial.agent.spec.tasks):
        files = sorted(work.glob(f"{task_key(task)}-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
        before = sum(seen.task == number and seen.error is None for seen in trial.dev)
        found.append([json.loads(path.read_text()) for path in files[before:]])
    return found
