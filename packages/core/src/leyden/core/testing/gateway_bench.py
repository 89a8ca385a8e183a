"""`GatewayBench`: the real gateway with a scripted engine, for tests of agents and adapters without a model.

It runs on a thread of its own, so that synchronous agents may block theirs.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar

from leyden.core.data.identity import mint
from leyden.core.data.rollout import AttemptedRollout, RolloutMode, Task
from leyden.core.data.span import Span
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.runner.adapters.builtin import ROLLOUT
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import BEGIN, END
from leyden.core.testing.scripted_engine import Scripted, ScriptedAnswer
from leyden.core.testing.scripted_gateway import ScriptedGateway, scripted_gateway
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.spans.export import Recorder, start_recording
from leyden.core.tracing.wire import gateway_pool, routing

T = TypeVar("T")

CONTEXT = 1 << 16
PATIENCE_SECONDS = 10.0
CHUNK = 7
"""Tokens per chunk, so that streams have several chunks."""


class Turn(NamedTuple):
    """One turn of a conversation, as the engine read it."""

    role: str
    text: str


class Late(NamedTuple):
    """A text that the model returns after some seconds."""

    text: str
    seconds: float


Answer: TypeAlias = Callable[[list[Turn]], str | Exception | Late]
"""Returns the model's next output: text (a tool call as `<tool_call>` JSON), late text, or an error to raise."""


def turns(ids: Sequence[int]) -> list[Turn]:
    """Return the complete turns in a prompt of `ByteCodec`; a prompt without a template is one turn of the user."""
    if BEGIN not in ids:
        return [Turn("user", bytes(token for token in ids if token < BEGIN).decode())]
    found: list[Turn] = []
    turn: list[int] = []
    for token in ids:
        if token == BEGIN:
            turn = []
        elif token == END:
            role, _, text = bytes(turn).decode().partition("\n")
            found.append(Turn(role, text))
        else:
            turn.append(token)
    return found


class GatewayBench:
    """Start it, open attempts, read `spans` and the engine's own `log`, then stop it.

    With a `capture_token`, it also captures agents in production.
    """

    def __init__(self, answer: Answer, *, capture_token: str | None = None) -> None:
        self.store = MemoryStore()
        self._answer, self._capture_token, self._stack = answer, capture_token, AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateway bench")
        self._gateway: ScriptedGateway | None = None

    def start(self) -> None:
        """Listen on a free port."""
        self._thread.start()
        server = scripted_gateway(
            self._script, store=self.store, context_length=CONTEXT, capture_token=self._capture_token
        )
        self._gateway = self._run_on_loop(self._stack.enter_async_context(server))

    def stop(self) -> None:
        """Abort the calls in progress, and end the thread."""
        self._run_on_loop(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        await self.gateway.engine.close()  # otherwise the server waits for calls whose agents have gone
        await self._stack.aclose()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # tasks of calls that no server waits for
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # a connection closes one turn of the event loop after its task

    @property
    def gateway(self) -> ScriptedGateway:
        """The running gateway; raises RuntimeError before `start`."""
        if self._gateway is None:
            raise RuntimeError("the bench is not started")
        return self._gateway

    @property
    def url(self) -> str:
        """Root URL of the gateway."""
        return self.gateway.url

    @property
    def log(self) -> list[EngineRecord]:
        """Every call in the order in which it ended, as the engine recorded it."""
        return self.gateway.engine.log

    async def attempt(self, task: Task, mode: RolloutMode = "train") -> OpenAttempt:
        """Begin an attempt at `task`, which the caller opens with `open_attempt`."""
        rollout = await self.store.start_rollout(task, mode)
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        await self.store.update_attempt(*ids, status="running")
        return OpenAttempt(
            rollout_id=ids[0],
            attempt_id=ids[1],
            token=mint(self.gateway.key, *ids),
            gateway_url=self.url,
            trace_id=ids[0].encode().hex()[-32:].rjust(32, "1"),
            mode=mode,
            extra={ROLLOUT: rollout},
        )

    async def rollout(self, attempt: OpenAttempt) -> AttemptedRollout:
        """Return the stored rollout of `attempt`."""
        rollout = await self.store.get_rollout_by_id(attempt.rollout_id)
        assert isinstance(rollout, AttemptedRollout), "`attempt` started it"
        return rollout

    async def spans(self, attempt: OpenAttempt) -> list[Span]:
        """Return the stored spans of `attempt`."""
        return (await self.store.query_spans(attempt.rollout_id, attempt.attempt_id)).items

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[Recorder]:
        """Install routing, context propagation and export in this process, as in a runner's; spans are stored here."""
        recorder = await start_recording(self.store.add_many_spans)
        context_propagation.install()
        routing.install(fail_closed=True)
        try:
            yield recorder
        finally:
            await gateway_pool.aclose()
            routing.uninstall()
            context_propagation.uninstall()
            await recorder.stop()

    def _script(self, request: GenerateRequest) -> Scripted:
        answer = self._answer(turns(request.prompt_ids))
        if isinstance(answer, Exception):
            return answer
        text, delay = answer if isinstance(answer, Late) else (answer, 0.0)
        return ScriptedAnswer(ids=self.gateway.codec.answer(text), chunk_size=CHUNK, delay=delay)

    def _run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)


@contextmanager
def only_this_machine() -> Generator[list[str]]:
    """Resolve only this machine's host names in the block; yields the other names that were looked up."""
    hosts: list[str] = []
    look_up = socket.getaddrinfo

    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", None):
            hosts.append(str(host))
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is not this machine")
        return look_up(host, *args, **kwargs)

    socket.getaddrinfo = guarded
    try:
        yield hosts
    finally:
        socket.getaddrinfo = look_up
