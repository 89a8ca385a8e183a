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
from leyden.core.engine.vllm.sleep import check_awake, put_to_sleep, wake_up
from leyden.core.engine.vllm.weights import SharedWeights, write_policy
from leyden.core.errors import EngineError, PolicyError

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
        self._source = self._first = str(Path(source).resolve()) if Path(source).is_dir() else str(source)
        self._version = version
        self._model = _described(self._source, name or Path(source).name, self._options)
        self._server = server or VllmServer(self._options, device=device, log=log)
        self._folder = Path(tempfile.mkdtemp(prefix="leyden-vllm-"))
        self._updates = 0
        self._adapter: Path | None = None
        self._shared = SharedWeights() if self._options.transfer == "ipc" else None
        self._wire: VllmClient | None = None
        self._mending = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
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
            await self._bring_up()
        except BaseException:
            await self.close()
            raise
        self._watching = asyncio.create_task(self._watch())

    async def update_adapters(self, save: Callable[[Path], None], version: int) -> None:
        """Serve the adapters that `save` writes, on the weights of the server's start, as `version`.

        Calls in flight continue with them. Each version has a new folder. vLLM identifies cached prefixes by it, so
        prefixes of older adapters are not used. Raises EngineError if the server was started without room for adapters.
        """
        if not self.takes_adapters:
            raise EngineError("this server was started without room for adapters: give VllmOptions(lora_rank=...)")
        folder = self._next_folder("adapter")
        folder.mkdir()
        await asyncio.to_thread(save, folder)
        async with self._stints.alone():
            before, self._adapter = self._adapter, folder
            await self._with_server(self._load_adapter)
            self._version = version
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    async def begin_again(self, version: int) -> None:
        """Serve the initial weights as `version`: those below the adapters, or after a restart of the server."""
        if not self.takes_adapters:
            await super().begin_again(version)
        async with self._stints.alone():
            if self._source != self._first:
                await self._serve_folder(Path(self._first))
            before, self._adapter = self._adapter, None
            self._version = version
        if before is not None:
            await asyncio.to_thread(shutil.rmtree, before, ignore_errors=True)

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Serve whole `weights` as `version`; see `VllmOptions.transfer` for the ways, and the cost of each.

        Calls in flight continue with them.
        """
        self._check_ready()
        if self._shared is None:
            folder = self._next_folder("policy")
            await asyncio.to_thread(write_policy, self._first, weights, folder)
            async with self._stints.alone():
                await self._serve_folder(folder)
                self._version = version
            return
        shared = self._shared
        async with self._stints.alone():
            shared.hold(weights)
            await self._with_server(lambda wire: shared.send(wire, version))
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
        async with self._stints.alone(), self._mending:  # a server that dies is restarted after the block
            self._check_ready()
            self.check()
            wire = self._wire
            sleeps = wire is not None and await put_to_sleep(wire)
            try:
                yield
            except Exception:
                await self._awake(wire, sleeps=sleeps)
                raise
            await self._awake(wire, sleeps=sleeps)

    async def _awake(self, wire: VllmClient | None, *, sleeps: bool) -> None:
        if sleeps and wire is not None and await wake_up(wire):
            return
        if self._stints.closed:
            return
        logger.warning("The vLLM server did not sleep and wake as it should, and is started again")
        await self._bring_up_or_break()

    async def measures(self) -> Mapping[str, bytes | None]:
        """Return the server's metrics; its name stays the same after a restart."""
        wire = self._server.wire
        return {"server": None if wire is None else await wire.metrics()}

    def check(self) -> None:
        """Raise EngineError if the server cannot be restarted."""
        if self._broken is not None:
            raise self._broken

    async def close(self) -> None:
        """Abort all calls in flight, stop the server, and remove the files written for it."""
        self._stints.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        async with self._mending:
            await self._server.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _place(self, rollout_id: str | None) -> SegmentServer:
        self.check()
        async with self._mending:  # held while a server is restarted
            self._check_ready()
            if self._wire is None:
                raise EngineError("the engine is not started")
            return SegmentServer(
                self._wire, BASE if self._adapter is None else ADAPTER, self._version, self.takes_adapters
            )

    async def _lost(self, place: SegmentServer, error: ServerUnreachable, losses: int) -> None:
        if losses > MOST_LOSSES:
            raise EngineError(f"the call was given up after {losses} losses in a row: {error}") from error
        await self._mend(place.wire, str(error))

    async def _watch(self) -> None:
        """Restart the server whenever it ends, even without calls."""
        while self._broken is None:
            wire = self._wire
            how = await self._server.ended()
            with contextlib.suppress(EngineError):  # `check` raises it
                await self._mend(wire, f"it ended: {how}")
            if self._wire is wire:
                await asyncio.sleep(1)  # an update restarts the server

    async def _mend(self, wire: VllmClient | None, why: str) -> None:
        """Restart the server unless it is healthy, or was already restarted."""
        async with self._mending:
            self.check()
            if self._stints.closed or self._wire is not wire or (wire is not None and await wire.is_healthy()):
                return
            logger.warning("The vLLM server was lost and is started again with version %d: %s", self._version, why)
            await self._bring_up_or_break()

    async def _bring_up_or_break(self) -> None:
        try:
            await self._bring_up()
        except EngineError as error:
            self._broken = error
            raise

    async def _bring_up(self) -> None:
        """Start the server with everything that it served last."""
        self._wire = wire = await self._server.start(self._source)
        served = (await wire.models()).get(BASE)
        if served is not None and served <= self._model.context_length:
            raise EngineError(f"vLLM serves {served} tokens, and {self._model.context_length + 1} were expected")
        await self._prove(wire)
        if self._adapter is not None:
            await self._load_adapter(wire)
        if self._shared is not None:
            await self._shared.begin(wire, self._version)
        if self._options.sleep:
            await check_awake(wire)

    async def _prove(self, wire: VllmClient) -> None:
        """Generate a token: vLLM crashes only at the first call of a model that it cannot compute on this machine."""
        try:
            await wire.next_log_prob(BASE, [0, 1], 2)
        except ServerUnreachable as error:
            raise EngineError(f"vLLM came up and broke at its first call: {self._server.reason()}") from error

    async def _load_adapter(self, wire: VllmClient) -> None:
        body = {"lora_name": ADAPTER, "lora_path": str(self._adapter), "load_inplace": True}
        await wire.ask("POST", "/v1/load_lora_adapter", body)

    async def _serve_folder(self, folder: Path) -> None:
        """Restart the server with whole weights, which replace the adapters."""
        async with self._mending:
            self.check()
            before = self._source
            self._source, self._adapter = str(folder), None
            await self._bring_up_or_break()
        if before != self._first:
            shutil.rmtree(before, ignore_errors=True)

    async def _with_server(self, act: Callable[[VllmClient], Awaitable[T]]) -> T:
        """Return the result of `act` with the current server; if that is lost, repeat it with a new server."""
        for losses in range(1, MOST_LOSSES + 1):
            place = await self._place(None)
            try:
                return await act(place.wire)
            except ServerUnreachable as error:
                await self._lost(place, error, losses)
        raise EngineError("the vLLM server was lost again and again during an update")

    def _next_folder(self, kind: str) -> Path:
        self._updates += 1
        return self._folder / f"{kind}-{self._updates}"


def _described(source: str, name: str, options: VllmOptions) -> ModelInfo:
    transformers: Any = import_module("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise PolicyError(f"{source} cannot be read as a language model: {reason}") from error
    length = options.context_length or getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise EngineError(f"{config.model_type} does not say how long its context is; set context_length")
    # One position is reserved so that a full context can be scored: vLLM samples one more token when it scores.
    return ModelInfo(name=name, context_length=length - 1, vocab_size=int(config.vocab_size))
