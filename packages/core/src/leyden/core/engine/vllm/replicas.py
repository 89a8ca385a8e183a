"""`ReplicaEngine`: serves one policy with several vLLM servers that other processes start and update.

Servers can be added and removed at any time. All of them serve one version. A rollout stays on its replica, whose
prefix cache holds its prompts; new rollouts go by the tokens that each replica has in flight. If the replica is lost,
its calls continue on another one, from the tokens that they have.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from leyden.core.engine.base import EngineRecord, ModelInfo
from leyden.core.engine.load_balancer import FIRST_PROBE, LONGEST_PROBE, Load, LoadBalancer
from leyden.core.engine.vllm.client import ServerUnreachable, VllmClient
from leyden.core.engine.vllm.remote_engine import RemoteEngine, SegmentServer
from leyden.core.errors import EngineError

logger = logging.getLogger(__name__)

Write = Callable[[Mapping[str, object], int], Awaitable[None]]
"""Gives every replica these weights as this version; called while none of them generates."""

MOST_LOSSES = 8
"""Number of consecutive replica losses, without a token in between, after which a call fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaServer:
    """A vLLM server of a policy: its URL, its API key, and the policy's name on it (None: its only model)."""

    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None


@dataclass(slots=True)
class _Replica:
    server: ReplicaServer
    client: VllmClient
    model: str


class ReplicaEngine(RemoteEngine):
    """Serves `model` with the replicas that are added. Must be used in a single event loop.

    A call without a replica waits `wait_seconds` for one. `write` transfers weights to the replicas, for
    `update_weights`. If another process transfers them, it must do so inside `updating`. Each replica must be a vLLM
    server with `--logprobs-mode processed_logprobs`; `add` refuses others.

    With `fixed`, the weights never change. Only then is a lost replica added again once it answers: a restarted server
    serves the weights that it started with.
    """

    def __init__(
        self,
        model: ModelInfo,
        *,
        version: int = 0,
        write: Write | None = None,
        wait_seconds: float = 600.0,
        fixed: bool = False,
        on_finish: Callable[[EngineRecord], None] | None = None,
    ) -> None:
        super().__init__(on_finish=on_finish)
        self._model, self._version, self._write = model, version, write
        self._wait_seconds, self._fixed = wait_seconds, fixed
        self._replicas: dict[str, _Replica] = {}
        self._has_replicas = asyncio.Event()
        self._balancer = LoadBalancer()
        self._returning: dict[str, asyncio.Task[None]] = {}
        """Tasks that add servers once they answer, by URL."""
        self._loss: str | None = None
        """Why no replica is left; None if one is left, or if they were removed on purpose."""

    @property
    def model(self) -> ModelInfo:
        """The served model."""
        return self._model

    @property
    def version(self) -> int:
        """Version that all replicas serve."""
        return self._version

    @property
    def replicas(self) -> dict[str, int]:
        """Number of tokens that each replica has in flight, prompts included, by URL."""
        return self._balancer.loads

    async def start(self) -> None:
        """Check that the engine is not closed; replicas are added when they are running."""
        self._check_ready()

    async def add(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """Add the server at `url`, which serves the current version; `key` is its API key.

        `model` is the policy's name on the server, by default its only model. Raises EngineError, in one line, for a
        server that is unreachable, has no such model, or does not return the needed log-probabilities.
        """
        await self._add(ReplicaServer(url=url, key=key, model=model))

    def add_later(self, server: ReplicaServer) -> None:
        """Add a server, which does not answer now, once it does; it is probed until the engine is closed."""
        url = server.url.rstrip("/")
        if url not in self._returning:
            task = asyncio.create_task(self._add_when_it_answers(server), name="leyden replica")
            self._returning[url] = task

            def forget(ended: asyncio.Task[None]) -> None:
                if self._returning.get(url) is ended:
                    del self._returning[url]

            task.add_done_callback(forget)

    async def _add(self, server: ReplicaServer) -> None:
        self._check_ready()
        # Servers with fixed weights are never paused for an update, so status 503 is a failure there.
        pause = {"pause_seconds": 0.0} if self._fixed else {}
        client = VllmClient(server.url, key=server.key, **pause)
        try:
            name = await self._model_name(client, server.model)
            await check_sampling_logprobs(client, name)
        except BaseException:
            await client.close()
            raise
        await self.remove(server.url)
        self._replicas[client.url] = _Replica(server, client, name)
        self._balancer.add(client.url)
        self._loss = None
        self._has_replicas.set()

    async def _add_when_it_answers(self, server: ReplicaServer) -> None:
        delay, refused = FIRST_PROBE, False
        while True:
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_PROBE)
            try:
                await self._add(server)
            except ServerUnreachable:
                continue
            except EngineError as error:
                if self._segments.closed:
                    return
                if not refused:
                    logger.warning("A server is not used as a replica: %s", error)
                refused = True
            else:
                logger.warning("The replica %s answers again, there are %d", server.url, len(self._replicas))
                return

    async def remove(self, url: str) -> None:
        """Stop sending calls to the server at `url`; its calls continue on other replicas."""
        url = url.rstrip("/")
        replica = self._replicas.pop(url, None)
        self._balancer.remove(url)
        returning = self._returning.pop(url, None)
        if returning is not None and returning is not asyncio.current_task():
            returning.cancel()
        if not self._replicas:
            self._has_replicas.clear()
        if replica is not None:
            await self._segments.end(replica.client)
            await replica.client.close()

    def check(self) -> None:
        """Raise EngineError if the last replica was lost, and none was added since."""
        if self._loss is not None:
            raise EngineError(f"no replica is left to serve the policy: {self._loss}")

    @asynccontextmanager
    async def updating(self, version: int, *, drain: bool = False) -> AsyncGenerator[None]:
        """Inside the block nothing is generated, so that the caller can give all replicas the weights of `version`.

        Calls under way are interrupted and continue with the new weights, or with `drain` are awaited. New calls wait.
        The caller must also clear the replicas' prefix caches. If the block raises, the version does not change.
        """
        if self._fixed:
            raise EngineError("the weights of this engine's servers are fixed: they cannot be updated")
        async with self._segments.exclusive(drain=drain):
            yield
            self._version = version

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Serve `weights` as `version`, transferred to the replicas by `write`; EngineError if there is no `write`."""
        self._check_ready()
        if self._write is None:
            raise EngineError(
                "this engine does not transfer weights to its replicas: use `updating` around the transfer"
            )
        async with self.updating(version):
            await self._write(weights, version)

    async def measures(self) -> Mapping[str, bytes | None]:
        """Return the metrics of every replica, by host and port."""
        clients = [replica.client for replica in self._replicas.values()]
        pages = await asyncio.gather(*(client.metrics() for client in clients))
        return {client.url.partition("://")[2]: page for client, page in zip(clients, pages, strict=True)}

    async def close(self) -> None:
        """Abort all calls in flight; the replicas keep running."""
        self._segments.close()
        self._has_replicas.set()
        returning = [*self._returning.values()]
        for task in returning:
            task.cancel()
        await asyncio.gather(*returning, return_exceptions=True)
        replicas, self._replicas = self._replicas, {}
        for url, replica in replicas.items():
            self._balancer.remove(url)
            await replica.client.close()

    async def _choose_server(self, rollout_id: str | None) -> SegmentServer:
        while (url := self._balancer.choose(rollout_id)) is None:
            try:
                await asyncio.wait_for(self._has_replicas.wait(), self._wait_seconds)
            except TimeoutError:
                raise EngineError(f"no replica was added within {self._wait_seconds:.0f} s") from None
            self._check_ready()
        replica = self._replicas[url]
        return SegmentServer(replica.client, replica.model, self._version)

    async def _handle_loss(self, server: SegmentServer, error: ServerUnreachable, losses: int) -> None:
        if losses > MOST_LOSSES:
            raise EngineError(f"the call failed after its replica was lost {losses} times in a row: {error}") from error
        replica = self._replicas.get(server.client.url)
        if replica is None or replica.client is not server.client:
            return
        # Of servers with fixed weights, one that fails repeatedly is left even if it reports that it is healthy.
        is_useless = self._fixed and losses > 1 and len(self._replicas) > 1
        if not is_useless and await server.client.is_healthy():
            return
        if self._replicas.get(server.client.url) is not replica:
            return  # another call has already removed the lost replica
        logger.warning("A replica was lost, %d are left: %s", len(self._replicas) - 1, error)
        if len(self._replicas) == 1:
            self._loss = str(error)
        await self.remove(server.client.url)
        if self._fixed:
            self.add_later(replica.server)

    def _load(self, server: SegmentServer, tokens: int) -> Load:
        return self._balancer.carry(server.client.url, tokens)

    async def _model_name(self, client: VllmClient, wanted: str | None) -> str:
        models = await client.models()
        names = [wanted] if wanted in models else [] if wanted else list(models)
        if len(names) != 1:
            raise EngineError(f"{client.url} serves {', '.join(models) or 'nothing'}, not {wanted or 'one model'}")
        served = models[names[0]]
        if served is not None and served <= self._model.context_length:
            raise EngineError(
                f"{client.url} has a context of {served} tokens: at least {self._model.context_length + 1} are needed"
            )
        return names[0]


async def check_sampling_logprobs(client: VllmClient, model: str) -> None:
    """Raise EngineError unless the server returns log-probabilities of the distribution that it samples from.

    At half the temperature, the difference of the two likeliest tokens must double.
    """
    ids = [1, 2, 3]
    warm, cold = await client.next_top(model, ids, 1.0, 2), await client.next_top(model, ids, 0.5, 2)
    warm_gap, cold_gap = warm[0][1] - warm[1][1], cold[0][1] - cold[1][1]
    if abs(cold_gap - warm_gap) < abs(cold_gap - 2 * warm_gap):
        raise EngineError(
            f"{client.url} does not return log-probabilities of its sampling distribution: start it with "
            "--logprobs-mode processed_logprobs"
        )
