"""`RayPool`: workers on the nodes of a Ray cluster, hosted by actors.

The number of workers changes by whole actors, because an actor reserves its processors when it starts.

An actor runs a `RunnerHost`, so workers are kept alive, replaced and stopped as on one machine. When an actor or its
node dies, its attempts become `unresponsive` at once. Another actor replaces it where there is room.
"""

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.errors import LeydenError, UsageError, first_line
from leyden.core.runner.workers.masked_log import open_log
from leyden.core.runner.workers.orphaned_attempts import OrphanedAttempts
from leyden.core.runner.workers.pipes import WorkerRefused
from leyden.core.runner.workers.pool import SHORT_LIFE_SECONDS, SHORT_LIVES, worker_prefix
from leyden.core.runner.workers.process import same_error
from leyden.core.runner.workers.ray_cluster import Cluster
from leyden.core.runner.workers.runner_host import RunnerHost
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.client import HttpStore

SCHEDULING_SECONDS = 60.0
"""Seconds that Ray gets to place an actor before `NoActorInTime` is raised."""
ALONE_SECONDS = 300.0
"""Longest time that a run continues without any actor."""
END_SECONDS = 15.0

logger = logging.getLogger(__name__)


class NoActorInTime(LeydenError):
    """Ray did not place an actor in time."""


class ActorLost(LeydenError):
    """An actor died."""


class RayPool:
    """Pool of `size` workers in `hosts` actors. Each actor requests `cpus` processors for each of its workers from Ray.

    Further actors, up to `most` workers in total, have as many workers as the smallest of the first.
    With `here_only`, all actors are placed on this machine's node, because the run listens on its loopback address.
    """

    def __init__(
        self,
        cluster: Cluster,
        spec: WorkerSpec,
        size: int,
        *,
        hosts: int,
        most: int | None = None,
        cpus: float = 1.0,
        here_only: bool = False,
    ) -> None:
        self._cluster, self._cpus, self._here_only = cluster, cpus, here_only
        self._spec = msgspec.structs.replace(spec, python_path=(*spec.python_path, *filter(None, sys.path)))
        self._shares = {slot: size // hosts + (slot < size % hosts) for slot in range(hosts)}
        """Number of workers of each slot. A slot is that of one actor and of those that replace it."""
        self._least, self._most, self._unit = size, most or size, size // hosts
        self._next_slot = hosts
        self._store = HttpStore(spec.store_url, spec.store_token)
        self._orphaned_attempts = OrphanedAttempts(self._store)
        self._actors: dict[int, _Actor] = {}
        self._keep_alive_tasks: dict[int, asyncio.Task[None]] = {}
        self._draining: dict[int, asyncio.Task[None]] = {}
        """Slots whose actor finishes its rollouts and is not replaced, and the tasks that wait for its end."""
        self._broken: LeydenError | None = None
        self._last_seen = time.monotonic()

    async def workers(self) -> list[str]:
        """Return the ids of the live workers in the store."""
        found: list[str] = []
        for actor in list(self._actors.values()):
            with contextlib.suppress(ActorLost):  # it has just ended
                found += await actor.workers()
        return found

    @property
    def size(self) -> int:
        """Number of workers of the actors that the pool keeps alive; drained actors are not counted."""
        return sum(self._shares[slot] for slot in self._slots())

    async def resize(self, size: int) -> None:
        """Start actors, or drain those with the fewest running attempts, until about `size` workers claim rollouts.

        The actors have at least `size` workers in total, if the pool's bound allows it. Drained actors count towards
        the bound until they have ended. Returns when the new workers are ready. Raises NoActorInTime if Ray has no
        room, and LeydenError if a worker cannot start; the others are kept.
        """
        running = {slot: await self._running(slot) for slot in self._slots()} if size < self.size else {}
        for slot in sorted(running, key=running.__getitem__):
            if self.size - self._shares[slot] >= max(size, self._least) and slot in self._actors:
                self._draining[slot] = asyncio.create_task(self._drain(slot, self._actors[slot]))
        added: list[int] = []
        while (room := min(self._unit, self._most - sum(self._shares.values()))) > 0 and size > self.size + sum(
            self._shares[slot] for slot in added
        ):
            self._shares[self._next_slot] = room
            added.append(self._next_slot)
            self._next_slot += 1
        ended = await asyncio.gather(*(self._start_one(slot) for slot in added), return_exceptions=True)
        for slot, error in zip(added, ended, strict=True):
            if isinstance(error, BaseException):
                del self._shares[slot]
            else:
                self._keep_alive_tasks[slot] = asyncio.create_task(self._keep_alive(slot))
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def start(self) -> None:
        """Start the actors and wait until the workers of each are ready.

        Raises the UsageError of a worker, NoActorInTime when Ray has no room, or UsageError when a node cannot reach
        the run.
        """
        starts = [self._start_one(slot) for slot in self._shares]
        failures = [e for e in await asyncio.gather(*starts, return_exceptions=True) if isinstance(e, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]
        self._keep_alive_tasks = {slot: asyncio.create_task(self._keep_alive(slot)) for slot in self._shares}

    async def check(self) -> None:
        """Raise LeydenError when no worker is alive and none can be started.

        The same is raised after `ALONE_SECONDS` without any actor.
        """
        now = time.monotonic()
        if self._actors:
            self._last_seen = now
        elif self._broken is not None:
            raise self._broken
        elif now - self._last_seen > ALONE_SECONDS:
            raise LeydenError(f"Ray has had no free resources for a runner for {ALONE_SECONDS:.0f} s; see `ray status`")

    async def stop(self) -> None:
        """Stop every worker. Their running rollouts go back to the queue."""
        tasks = [*self._keep_alive_tasks.values(), *self._draining.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        actors, self._actors = list(self._actors.values()), {}
        await asyncio.gather(*(actor.end() for actor in actors))
        await self._orphaned_attempts.stop()
        await self._store.close()

    async def _start_one(self, slot: int) -> None:
        actor = _Actor(self._cluster.ray, self._spec, self._shares[slot], self._options(self._shares[slot]))
        try:
            await actor.begin()
        except BaseException:
            await actor.end()
            raise
        self._actors[slot] = actor

    def _slots(self) -> list[int]:
        """Return the slots whose actors claim rollouts, or are being replaced."""
        return [slot for slot in self._keep_alive_tasks if slot not in self._draining]

    async def _running(self, slot: int) -> int:
        """Return the number of attempts that the actor of a slot runs; 0 if it has none."""
        actor = self._actors.get(slot)
        with contextlib.suppress(LeydenError):
            return 0 if actor is None else await actor.running()
        return 0

    async def _drain(self, slot: int, actor: "_Actor") -> None:
        """Wait until the actor of a slot has finished its rollouts, and end it."""
        keeping_alive = self._keep_alive_tasks.pop(slot)
        keeping_alive.cancel()
        await asyncio.gather(keeping_alive, return_exceptions=True)
        try:
            await actor.drain()
        except ActorLost as error:
            logger.warning("%s was lost while it finished its rollouts: %s", actor, error)
            self._orphaned_attempts.sweep_worker(str(actor), str(error), actor.has_worker)
        await actor.end()
        del self._actors[slot], self._shares[slot], self._draining[slot]

    async def _keep_alive(self, slot: int) -> None:
        """Replace the actor of one slot whenever it dies."""
        short_lives = 0
        while True:
            actor = self._actors[slot]
            try:
                self._broken = LeydenError(await actor.ended())
                del self._actors[slot]
                await actor.end()
                return
            except ActorLost as error:
                del self._actors[slot]
                logger.warning("%s is replaced: %s", actor, error)
                self._orphaned_attempts.sweep_worker(str(actor), str(error), actor.has_worker)
                await actor.end()
                short_lives = short_lives + 1 if time.monotonic() - actor.began < SHORT_LIFE_SECONDS else 0
                if short_lives >= SHORT_LIVES:
                    self._broken = LeydenError(
                        f"{short_lives} actors in a row ended right after their start, the last because {error}"
                    )
                    return
            if not await self._replace(slot):
                return

    async def _replace(self, slot: int) -> bool:
        """Start another actor as soon as there is room. Returns False when none can be started at all."""
        while True:
            try:
                await self._start_one(slot)
            except (NoActorInTime, ActorLost) as error:
                logger.warning("no replacement for a lost actor could be started yet: %s", error)
                await asyncio.sleep(1.0)
            except LeydenError as error:
                self._broken = error
                return False
            else:
                return True

    def _options(self, share: int) -> dict[str, Any]:
        ray = self._cluster.ray
        options: dict[str, Any] = {"num_cpus": self._cpus * share, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        if self._here_only:
            strategies = ray.util.scheduling_strategies
            options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(
                node_id=self._cluster.this_node, soft=False
            )
        return options


class _Actor:
    """The run's handle of one actor. The output of its workers is appended to the run's log."""

    def __init__(self, ray: Any, spec: WorkerSpec, share: int, options: dict[str, Any]) -> None:
        self._ray, self._share, self._options = ray, share, options
        self._name = secrets.token_hex(3)
        self._prefix = worker_prefix(spec.store_token, self._name)
        self._node = ""
        self._log = Path(spec.log_file) if spec.log_file else None
        self._log_task: asyncio.Task[None] | None = None
        self.began = time.monotonic()
        remote: Any = ray.remote(RunnerHost)
        given = msgspec.json.encode(spec), share, self._name, str(Path.cwd())
        self._handle: Any = remote.options(**options).remote(*given)

    def __str__(self) -> str:
        return f"runner {self._name}" + (f" on {self._node}" if self._node else "")

    def has_worker(self, worker_id: str) -> bool:
        """Return whether the actor hosts, or hosted, this worker."""
        return worker_id.startswith(self._prefix)

    async def begin(self) -> None:
        """Wait until the workers are ready. Raises a worker's error, NoActorInTime or ActorLost."""
        try:
            self._node = await asyncio.wait_for(self._call("machine"), SCHEDULING_SECONDS)
        except (TimeoutError, self._ray.exceptions.ActorUnschedulableError):
            free = self._ray.available_resources().get("CPU", 0.0)
            raise NoActorInTime(
                f"Ray has no node with {self._options['num_cpus']:g} free CPUs for {self._share} workers ({free:g} "
                "are free in total): give fewer --workers, more --ray-actors or a smaller --ray-cpus"
            ) from None
        refused: WorkerRefused | None = await self._call("begin")
        if refused is not None:
            raise same_error(refused)
        self.began = time.monotonic()
        if self._log is not None:
            self._log_task = asyncio.create_task(self._copy_output())

    async def running(self) -> int:
        """Return the number of attempts that run."""
        return await self._call("running")

    async def drain(self) -> None:
        """Wait until the claimed rollouts have ended, and the workers with them; no further ones are claimed."""
        await self._call("drain")

    async def workers(self) -> list[str]:
        """Return the ids of the actor's live workers."""
        return await self._call("workers")

    async def ended(self) -> str:
        """Wait until the actor can keep no worker alive, and return the reason.

        Raises ActorLost when the actor died.
        """
        return await self._call("ended")

    async def end(self) -> None:
        """Stop the workers, read their last output, and let Ray end the actor."""
        if self._node:
            try:
                async with asyncio.timeout(END_SECONDS):
                    last = await self._call("end")
                    if self._log_task is not None:
                        await asyncio.wait({self._log_task})  # a call that is cancelled here is made once more
                self._print(last)
            except (LeydenError, TimeoutError) as error:
                logger.info("%s did not stop cleanly: %r", self, error)
        self._ray.kill(self._handle)

    async def _copy_output(self) -> None:
        """Copy the workers' output to the log until the actor ends. `ended` reports the reason."""
        with contextlib.suppress(LeydenError):
            while (piece := await self._call("read_output")) is not None:
                self._print(piece)

    def _print(self, piece: bytes) -> None:
        if piece and self._log is not None:
            with open(open_log(str(self._log)), "ab") as file:  # already masked on the actor's machine
                file.write(piece)

    async def _call(self, method: str) -> Any:
        """Call a method of the host. Raises ActorLost when the actor is gone."""
        try:
            return await getattr(self._handle, method).remote()
        except self._ray.exceptions.RuntimeEnvSetupError as error:
            raise UsageError(f"{self} cannot be set up: {first_line(error)}") from None
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.RayTaskError) as error:
            raise ActorLost(first_line(error)) from None
