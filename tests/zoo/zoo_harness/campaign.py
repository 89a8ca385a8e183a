"""`Campaign`: the trials of many agents, several at once, on a loop of its own; and the table that they come to."""

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo_harness.agent_file import FAMILIES, ZooAgent
from zoo_harness.certificate import make_certificate
from zoo_harness.checks import author_problems, dev_problems, same_problems, train_problems
from zoo_harness.learning import learning_problems
from zoo_harness.trial import Trial, run_author, run_with_leyden
from zoo_harness.warm import WarmServer

AT_ONCE = 3
"""Trials at once: one more than there are cores on a small machine, as they wait for processes."""
COLUMNS = ("author", "dev", "train", "same")


@dataclass
class Outcome:
    """What became of an agent: problems by column of the table."""

    agent: ZooAgent
    problems: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    isolation: str = ""

    @property
    def with_leyden(self) -> list[str]:
        """All problems that are not the agent's own."""
        return [f"{name}: {line}" for name in COLUMNS[1:] for line in self.problems[name]]

    def row(self) -> dict[str, Any]:
        """The row of the table."""
        columns = {name: "ok" if not self.problems[name] else self.problems[name][0] for name in COLUMNS}
        return {"family": self.agent.family, "agent": self.agent.name, "kind": self.agent.title, **columns} | {
            "mark": self.agent.spec.mark
        }


class Campaign:
    """Begin it with all agents that are wanted, then ask for their outcomes one by one; close it."""

    def __init__(self, agents: Sequence[ZooAgent], folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="zoo")
        self._thread.start()
        self._certificate = make_certificate(folder, {host for agent in agents for host in agent.spec.hosts})
        self._places = asyncio.Semaphore(AT_ONCE)
        self._servers: dict[str, asyncio.Future[tuple[WarmServer, WarmServer]]] = {}
        self._trials: dict[str, Future[Outcome]] = {
            f"{agent.family}/{agent.name}": asyncio.run_coroutine_threadsafe(self._run(agent), self._loop)
            for agent in agents
        }
        self.outcomes: list[Outcome] = []

    def outcome(self, agent: ZooAgent) -> Outcome:
        """Wait for the outcome of one agent."""
        outcome = self._trials[f"{agent.family}/{agent.name}"].result()
        self.outcomes.append(outcome)
        return outcome

    def close(self) -> None:
        """End every process."""
        for trial in self._trials.values():
            trial.cancel()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for starting in self._servers.values():
            for server in reversed(await starting):
                await server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)

    async def _run(self, agent: ZooAgent) -> Outcome:
        async with self._places:
            folder = self._folder / agent.family / agent.name
            trial = Trial(agent)
            without, having = await self._servers_of(agent.family)
            trial.author = await run_author(agent, without, self._certificate, folder)
            await run_with_leyden(trial, having, self._certificate, folder)
            train = [*train_problems(trial), *await asyncio.to_thread(learning_problems, trial)]
            problems = {
                "author": author_problems(trial),
                "dev": dev_problems(trial),
                "train": train,
                "same": same_problems(trial),
            }
            return Outcome(agent, problems, trial.isolation)

    async def _servers_of(self, family: str) -> tuple[WarmServer, WarmServer]:
        """The family's server, and the one with Leyden."""
        if family not in self._servers:
            self._servers[family] = asyncio.ensure_future(self._start(family))
        return await self._servers[family]

    async def _start(self, family: str) -> tuple[WarmServer, WarmServer]:
        server = WarmServer.start(FAMILIES[family])
        return server, await server.with_more(["leyden.core.runner.workers.worker"])


def write_table(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the table, as JSON or, by the file's name, as Markdown."""
    rows = [outcome.row() for outcome in sorted(outcomes, key=lambda one: (one.agent.family, one.agent.name))]
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        return
    lines = ["| family | agent | what it is | dev | train | same with and without | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = ["ok" if row[name] == "ok" else "fails" for name in COLUMNS[1:]]
        lines.append(
            f"| {row['family']} | {row['agent']} | {row['kind']} | {' | '.join(cells)} | {row['mark'] or ''} |"
        )
    path.write_text("\n".join(lines) + "\n")
