"""`VllmEngine`: serves one policy with a vLLM server that it starts on this machine.

New weights arrive as low-rank adapters, loaded while the server runs, or as whole weights. For whole weights the server
is restarted, or on a GPU reads them from memory that it shares with the Leyden process. A server that dies is restarted
with the same weights, and its calls continue from the tokens that they had.
"""

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from leyden.core.engine.base import EngineRecord, ModelInfo
from leyden.core.engine.vllm.client import ServerUnreachable, VllmClient
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.engine.vllm.remote_engine import RemoteEngine, SegmentServer
from leyden.core.engine.vllm.server import BASE, VllmServer
from leyden.core.engine.vllm.weights import SharedWeights, write_policy
from leyden.core.errors import EngineError, PolicyError, first_line

logger = logging.getLogger(__name__)

T = TypeVar("T")

ADAPTER = "adapter"
"""Name of the latest adapters on the server."""
MOST_LOSSES = 4
"""Number of consecutive server losses, without a token in between, after which a call fails."""


class VllmEngine(RemoteEngine):
    """Serves the model in a folder, or of a hub name. `log` is the file for the server's output.

    `server` runs the server process; by default it is made from `options` and `device`.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        name: str | None = None,
        version: int = 0,
        options: VllmOptions | None = None,
        device: str = "cpu",
        log: Path | None = None,
        on_finish: Callable[[EngineRecord], None] | None = None,
        server: VllmServer | None = None,
    ) -> None:
        super().__init__(on_finish=on_finish)
        self._options = options or VllmOptions()
        self._source = self._initial_source = str(Path(source).resolve()) if Path(source).is_dir() else str(source)
        self._version = version
        self._model = _model_info(self._source, name or Path(source).name, self._options)
        self._server = server or VllmServer(self._options, device=device, log=log)
        self._folder = Path(tempfile.mkdtemp(prefix="leyden-vllm-"))
        self._updates = 0
        self._adapter: Path | None = None
        self._shared_weights = SharedWeights() if self._options.transfer == "ipc" else None
        self._client: VllmClient | None = None
        self._restart_lock = asyncio.Lock()
        self._watch_task: asyncio.Task[None] | None = None
        self._broken: EngineError | None = None

    @property
    def model(self) -> ModelInfo:
        """The served model."""
        return self._model

    @property
    def version(self) -> int:
        """Version of the weights that the next generation segment will use."""
        return self._version

    @property
    def takes_adapters(self) -> bool:
        """Whether the server was started with room for adapters."""
        return self._options.lora_rank > 0

    async def start(self) -> None:
        """Start the server, and return when it answers; EngineError, in one line, if it does not start."""
        self._check_ready()
        try:
            await self._start_server()
        except BaseException:
            await self.close()
            raise
        self._watch_task = asyncio.create_task(self._watch())

    async def update_adapters(self, save: Callable[[Path], None], version: int) -> None:
        """Serve the adapters that `save` writes, on the weights of the server's start, as `version`.

        Calls in flight continue with them. Each version has a new folder. vLLM identifies cached prefixes by it, so
        prefixes of older adapters are not used. Raises EngineError if the server was started without room for adapters.
        """
        if not self.takes_adapters:
            raise EngineError("this server was started without support for adapters: give VllmOptions(lora_rank=...)")
        folder = self._next_folder("adapter")
        folder.mkdir()
        await asyncio.to_thread(save, folder)
        async with self._segments.exclusive():
            old_adapter, self._adapter = self._adapter, folder
            await self._with_server(self._load_adapter)
            self._version = version
        if old_adapter is not None:
            shutil.rmtree(old_adapter, ignore_errors=True)

    async def begin_again(self, version: int) -> None:
        """Serve the initial weights as `version`: those below the adapters, or after a restart of the server."""
        if not self.takes_adapters:
            await super().begin_again(version)
        async with self._segments.exclusive():
            if self._source != self._initial_source:
                await self._serve_folder(Path(self._initial_source))
            old_adapter, self._adapter = self._adapter, None
            self._version = version
        if old_adapter is not None:
            await asyncio.to_thread(shutil.rmtree, old_adapter, ignore_errors=True)

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Serve whole `weights` as `version`; see `VllmOptions.transfer` for the ways, and the cost of each.

        Calls in flight continue with them.
        """
        self._check_ready()
        if self._shared_weights is None:
            folder = self._next_folder("policy")
            await asyncio.to_thread(write_policy, self._initial_source, weights, folder)
            async with self._segments.exclusive():
                await self._serve_folder(folder)
                self._version = version
            return
        shared = self._shared_weights
        async with self._segments.exclusive():
            shared.hold(weights)
            await self._with_server(lambda client: shared.send(client, version))
            self._version = version

    @asynccontextmanager
    async def asleep(self) -> AsyncGenerator[None]:
        """Put the server to sleep for the block, if configured; a server that does not wake is restarted.

        Calls in flight are interrupted and continue after the block. If the block is cancelled, the server stays
        asleep, because it is closed next.
        """
        if not self._options.sleep:
            yield
            return
        async with self._segments.exclusive(), self._restart_lock:  # a server that dies is restarted after the block
            self._check_ready()
            self.check()
            client = self._client
            sleeps = client is not None and await put_to_sleep(client)
            try:
                yield
            except Exception:
                await self._wake(client, sleeps=sleeps)
                raise
            await self._wake(client, sleeps=sleeps)

    async def _wake(self, client: VllmClient | None, *, sleeps: bool) -> None:
        if sleeps and client is not None and await wake_up(client):
            return
        if self._segments.closed:
            return
        logger.warning("The vLLM server failed to sleep and wake up, and is restarted")
        await self._start_server_or_fail()

    async def measures(self) -> Mapping[str, bytes | None]:
        """Return the server's metrics; its name stays the same after a restart."""
        client = self._server.client
        return {"server": None if client is None else await client.metrics()}

    def check(self) -> None:
        """Raise EngineError if the server cannot be restarted."""
        if self._broken is not None:
            raise self._broken

    async def close(self) -> None:
        """Abort all calls in flight, stop the server, and remove the files written for it."""
        self._segments.close()
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.wait([self._watch_task])
        async with self._restart_lock:
            await self._server.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _choose_server(self, rollout_id: str | None) -> SegmentServer:
        self.check()
        async with self._restart_lock:  # held while a server is restarted
            self._check_ready()
            if self._client is None:
                raise EngineError("the engine is not started")
            return SegmentServer(
                self._client, BASE if self._adapter is None else ADAPTER, self._version, self.takes_adapters
            )

    async def _handle_loss(self, server: SegmentServer, error: ServerUnreachable, losses: int) -> None:
        if losses > MOST_LOSSES:
            raise EngineError(f"the call failed after the server was lost {losses} times in a row: {error}") from error
        await self._restart_if_lost(server.client, str(error))

    async def _watch(self) -> None:
        """Restart the server whenever it ends, even without calls."""
        while self._broken is None:
            client = self._client
            reason = await self._server.ended()
            with contextlib.suppress(EngineError):  # `check` raises it
                await self._restart_if_lost(client, f"it ended: {reason}")
            if self._client is client:
                await asyncio.sleep(1)  # an update restarts the server

    async def _restart_if_lost(self, client: VllmClient | None, reason: str) -> None:
        """Restart the server unless it is healthy, or was already restarted."""
        async with self._restart_lock:
            self.check()
            if (
                self._segments.closed
                or self._client is not client
                or (client is not None and await client.is_healthy())
            ):
                return
            logger.warning("The vLLM server was lost and is restarted with version %d: %s", self._version, reason)
            await self._start_server_or_fail()

    async def _start_server_or_fail(self) -> None:
        try:
            await self._start_server()
        except EngineError as error:
            self._broken = error
            raise

    async def _start_server(self) -> None:
        """Start the server with everything that it served last."""
        self._client = client = await self._server.start(self._source)
        context_length = (await client.models()).get(BASE)
        if context_length is not None and context_length <= self._model.context_length:
            raise EngineError(
                f"vLLM has a context of {context_length} tokens, and {self._model.context_length + 1} were expected"
            )
        await self._check_first_call(client)
        if self._adapter is not None:
            await self._load_adapter(client)
        if self._shared_weights is not None:
            await self._shared_weights.begin(client, self._version)
        if self._options.sleep:
            await check_awake(client)

    async def _check_first_call(self, client: VllmClient) -> None:
        """Generate a token: vLLM crashes only at the first call of a model that it cannot compute on this machine."""
        try:
            await client.next_log_prob(BASE, [0, 1], 2)
        except ServerUnreachable as error:
            raise EngineError(f"vLLM started and failed at its first call: {self._server.reason()}") from error

    async def _load_adapter(self, client: VllmClient) -> None:
        body = {"lora_name": ADAPTER, "lora_path": str(self._adapter), "load_inplace": True}
        await client.request("POST", "/v1/load_lora_adapter", body)

    async def _serve_folder(self, folder: Path) -> None:
        """Restart the server with whole weights, which replace the adapters."""
        async with self._restart_lock:
            self.check()
            old_source = self._source
            self._source, self._adapter = str(folder), None
            await self._start_server_or_fail()
        if old_source != self._initial_source:
            shutil.rmtree(old_source, ignore_errors=True)

    async def _with_server(self, action: Callable[[VllmClient], Awaitable[T]]) -> T:
        """Return the result of `action` with the current server; if that is lost, repeat it with a new server."""
        for losses in range(1, MOST_LOSSES + 1):
            server = await self._choose_server(None)
            try:
                return await action(server.client)
            except ServerUnreachable as error:
                await self._handle_loss(server, error, losses)
        raise EngineError("the vLLM server was lost repeatedly during an update")

    def _next_folder(self, kind: str) -> Path:
        self._updates += 1
        return self._folder / f"{kind}-{self._updates}"


def _model_info(source: str, name: str, options: VllmOptions) -> ModelInfo:
    transformers: Any = import_module("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(f"{source} cannot be read as a language model: {first_line(error)}") from error
    length = options.context_length or getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise EngineError(f"{config.model_type} has no context length in its configuration; set context_length")
    # One position is reserved so that a full context can be scored: vLLM samples one more token when it scores.
    return ModelInfo(name=name, context_length=length - 1, vocab_size=int(config.vocab_size))


# Sleep mode: at level 1, the server moves its weights and adapters to the machine's memory and drops its cache. This
# needs its development endpoints, which need no key: every process that reaches this machine's loopback can use them.


async def check_awake(client: VllmClient) -> None:
    """Raise EngineError, in one line, for a server that cannot be put to sleep."""
    await client.request("GET", "/is_sleeping")


async def put_to_sleep(client: VllmClient) -> bool:
    """Put the server to sleep, and return whether it sleeps; no call may be in flight."""
    return await _post(client, "/sleep?level=1")


async def wake_up(client: VllmClient) -> bool:
    """Wake the server, and return whether it is awake; first returns the trainer's cached GPU memory."""
    torch: Any = import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return await _post(client, "/wake_up")


async def _post(client: VllmClient, path: str) -> bool:
    try:
        await client.request("POST", path)
    except EngineError as error:
        logger.warning("The vLLM server did not change its sleep state: %s", error)
        return False
    return True
