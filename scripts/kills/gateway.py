"""Kills a gateway of its own at random moments, while OpenAI's clients in another process are at work.

Knows nothing of what must hold afterwards; see `gateway_checks`.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from kills.gateway_clients import ClientsPlan
from kills.gateway_server import ServerPlan
from kills.processes import ENVIRONMENT, wait_until
from leyden.core.data.identity import mint, new_key
from leyden.core.store.open import open_store
from leyden.core.testing.servers.ports import free_port

SCRIPTS = Path(__file__).parents[1]
ATTEMPTS = 6
CLIENTS = 18
LONGEST_SECONDS = 2.0
"""Of a life at work, before it is killed."""
KILLED_WHILE_STARTING = 0.1
START_SECONDS = 60.0
AFTERWARDS_SECONDS = 1.0
"""For which the last life works before the clients are told to end."""


@dataclass
class GatewayKills:
    """What was killed when, and what was seen on the way."""

    kills: int = 0
    killed_while_starting: int = 0
    lives: list[float] = field(default_factory=list[float])
    """When each life of the gateway began."""
    wrong: list[str] = field(default_factory=list[str])


class GatewayCampaign:
    """One store in `folder`, and many lives of the gateway that keeps it."""

    def __init__(self, folder: Path, kills: int, seed: int, told: Callable[[], object]) -> None:
        self.folder, self.store_file = folder, folder / "gateway.db"
        self.journal, self.engine_log = folder / "clients.jsonl", folder / "engine.jsonl"
        self.found = GatewayKills()
        self._planned, self._seed, self._told = kills, seed, told
        self._random = Random(f"gateway {seed}")
        self._key, self._port = new_key(), free_port()
        self._gateway: subprocess.Popen[bytes] | None = None
        self._clients: subprocess.Popen[bytes] | None = None

    def work(self) -> GatewayKills:
        """Kill as often as planned, then let the clients finish."""
        attempts = asyncio.run(self._open_attempts())
        self._gateway = self._start_gateway()
        plan = ClientsPlan(attempts=attempts, journal=str(self.journal), clients=CLIENTS, seed=self._seed)
        self._clients = self._start("kills.gateway_clients", plan, "clients.log")
        while self.found.kills < self._planned:
            if self._random.random() < KILLED_WHILE_STARTING:
                time.sleep(self._random.uniform(0.0, 1.0))
                self.found.killed_while_starting += 1
            else:
                self._wait_until_ready()
                time.sleep(self._random.uniform(0.0, LONGEST_SECONDS))
            _bury(self._gateway)
            self.found.kills += 1
            self._told()
            self._gateway = self._start_gateway()
        self._wait_until_ready()
        time.sleep(AFTERWARDS_SECONDS)
        self._end(self._clients, "the clients", "clients.log")
        self._end(self._gateway, "the gateway", "gateway.log")
        return self.found

    def stop(self) -> None:
        """End what still runs."""
        for process in (self._clients, self._gateway):
            if process is not None:
                _bury(process)

    async def _open_attempts(self) -> dict[str, str]:
        """Begin attempts; returns the base URL of each."""
        store = await open_store(self._uri)
        try:
            rollouts = [await store.start_rollout("to be asked", mode="train") for _ in range(ATTEMPTS)]
        finally:
            await store.close()
        tokens = {r.attempt.attempt_id: mint(self._key, r.rollout_id, r.attempt.attempt_id) for r in rollouts}
        return {attempt: f"http://127.0.0.1:{self._port}/a/{token}/v1" for attempt, token in tokens.items()}

    @property
    def _uri(self) -> str:
        return f"sqlite:///{self.store_file}"

    def _start_gateway(self) -> "subprocess.Popen[bytes]":
        life = len(self.found.lives)
        self.found.lives.append(time.time())
        log = str(self.engine_log)
        plan = ServerPlan(store_uri=self._uri, port=self._port, key=self._key.hex(), engine_log=log, life=life)
        return self._start("kills.gateway_server", plan, "gateway.log")

    def _start(self, module: str, plan: msgspec.Struct, log_name: str) -> "subprocess.Popen[bytes]":
        with (self.folder / log_name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=SCRIPTS,
                env={**os.environ, ENVIRONMENT: str(self.folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        assert process.stdin is not None  # a pipe was asked for
        with suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(plan) + b"\n")
            process.stdin.flush()
        return process

    def _wait_until_ready(self) -> None:
        if not wait_until(self._listens, START_SECONDS):
            raise RuntimeError(f"the gateway does not start: {self._log('gateway.log')}")

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
            return True
        return False

    def _end(self, process: "subprocess.Popen[bytes]", who: str, log_name: str) -> None:
        """Let a process end by itself."""
        try:
            process.communicate(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            self.found.wrong.append(f"{who} do not come to an end: {self._log(log_name)}")
            return
        if process.returncode != 0:
            self.found.wrong.append(f"{who} ended with code {process.returncode}: {self._log(log_name)}")

    def _log(self, name: str) -> str:
        return (self.folder / name).read_text()[-2000:]


def _bury(process: "subprocess.Popen[bytes]") -> None:
    """`kill -9`, and let go of what we held of the process."""
    process.kill()
    process.wait()
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
