"""`ReplicaEngine`: serves one policy with several vLLM servers that other processes start and update.

Servers can be added and removed at any time. All of them serve one version. A rollout stays on its replica, whose
prefix cache holds its prompts. If the replica is lost, its calls continue on another one, from the tokens that they
have.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from leyden.core.engine.base import EngineRecord, ModelInfo
from leyden.core.engine.vllm.client import ServerUnreachable, VllmClient
from leyden.core.engine.vllm.remote_engine import RemoteEngine, SegmentServer
from leyden.core.errors import EngineError

logger = logging.getLogger(__name__)

Write = Callable[[Mapping[str, object], int], Awaitable[None]]
"""Gives every replica these weights as this version; called while none of them generates."""

REMEMBERED = 65536
"""Maximum number of rollouts whose replica is remembered; the least recently used are forgotten."""
MOST_LOSSES = 8
"""Number of consecutive replica losses, without a token in between, after which a call fails."""


@dataclass(slots=True)
class _Replica:
    client: VllmClient
    model: str


class ReplicaEngine(RemoteEngine):
    """Serves `model` with the replicas that are added. Must be used in a single event loop.

    A call without a replica waits `wait_seconds` for one. `write` transfers weights to the replicas, for
    `update_weights`. If another process transfers them, it must do so inside `updating`. Each replica must be a vLLM
    server with `--logprobs-mode processed_logprobs`; `add` refuses others.
    """

    def __init__(
        self,
        model: ModelInfo,
        *,
        version: int = 0,
        write: Write | None = None,
        wait_seconds: float = 600.0,
        on_finish: Callable[[EngineRecord], None] | None = None,
    ) -> None:
        super().__init__(on_finish=on_finish)
        self._model, self._version, self._write = model, version, write
        self._wait_seconds = wait_seconds
        self._replicas: dict[str, _Replica] = {}
        self._has_replicas = asyncio.Event()
        self._replica_of: OrderedDict[str, str] = OrderedDict()
        self._rollout_counts: Counter[str] = Counter()
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
        """Number of remembered rollouts on each replica, by URL."""
        return {url: self._rollout_counts[url] for url in self._replicas}

    async def start(self) -> None:
        """Check that the engine is not closed; replicas are added when they are running."""
        self._check_ready()

    async def add(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """Add the server at `url`, which serves the current version; `key` is its API key.

        `model` is the policy's name on the server, by default its only model. Raises EngineError, in one line, for a
        server that is unreachable, has no such model, or does not return the needed log-probabilities.
        """
        self._check_ready()
        client = VllmClient(url, key=key)
        try:
            name = await self._model_name(client, model)
            await check_sampling_logprobs(client, name)
        except BaseException:
            await client.close()
            raise
        await self.remove(url)
        self._replicas[client.url] = _Replica(client, name)
        self._loss = None
        self._has_replicas.set()

    async def remove(self, url: str) -> None:
        """Stop sending calls to the server at `url`; its calls continue on other replicas."""
        replica = self._replicas.pop(url.rstrip("/"), None)
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
        replicas, self._replicas = self._replicas, {}
        for replica in replicas.values():
            await replica.client.close()

    async def _choose_server(self, rollout_id: str | None) -> SegmentServer:
        if not self._has_replicas.is_set():
            try:
                await asyncio.wait_for(self._has_replicas.wait(), self._wait_seconds)
            except TimeoutError:
                raise EngineError(f"no replica was added within {self._wait_seconds:.0f} s") from None
        self._check_ready()
        url = self._replica_url(rollout_id)
        replica = self._replicas[url]
        return SegmentServer(replica.client, replica.model, self._version)

    async def _handle_loss(self, server: SegmentServer, error: ServerUnreachable, losses: int) -> None:
        if losses > MOST_LOSSES:
            raise EngineError(f"the call failed after its replica was lost {losses} times in a row: {error}") from error
        replica = self._replicas.get(server.client.url)
        if replica is None or replica.client is not server.client or await server.client.is_healthy():
            return
        if self._replicas.get(server.client.url) is not replica:
            return  # another call has already removed the lost replica
        logger.warning("A replica was lost, %d are left: %s", len(self._replicas) - 1, error)
        if len(self._replicas) == 1:
            self._loss = str(error)
        await self.remove(server.client.url)

    def _replica_url(self, rollout_id: str | None) -> str:
        """Return the URL of a rollout's replica: the one it had, or the one with the fewest rollouts."""
        known = self._replica_of.get(rollout_id or "")
        if rollout_id and known in self._replicas:
            self._replica_of.move_to_end(rollout_id)
            return known
        url = min(self._replicas, key=lambda url: self._rollout_counts[url])
        if rollout_id:
            self._replica_of[rollout_id] = url
            self._replica_of.move_to_end(rollout_id)
            self._rollout_counts[url] += 1
            if known is not None:
                self._rollout_counts[known] -= 1
            if len(self._replica_of) > REMEMBERED:
                self._rollout_counts[self._replica_of.popitem(last=False)[1]] -= 1
        return url

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
