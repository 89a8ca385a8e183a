"""Messages between a runner and the process of one attempt: MessagePack with a length prefix over a socket."""

import asyncio
import struct
from typing import TypeVar

import msgspec

from leyden.core.data.failure import Failure
from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import AttemptedRollout, RolloutMode
from leyden.core.data.route import Route
from leyden.core.data.span import Span
from leyden.core.runner.attempts.agent_run import Stage

T = TypeVar("T")

_LENGTH = struct.Struct("<I")


class BeginAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """First message to the process: the attempt that it runs."""

    rollout: AttemptedRollout
    token: str
    gateway_url: str
    trace_id: str
    mode: RolloutMode | None
    routes: tuple[Route, ...]
    resources: NamedResources
    folder: str
    """Folder for what frameworks write to disk by default. It need not exist."""
    worker_id: str
    store: tuple[str, str] | None
    """URL and token of the store. None where there are no hooks, which alone use it."""


class AttemptMarked(msgspec.Struct, frozen=True):
    """Message to a process with hooks: the attempt is marked, and `spans` holds all its stored spans."""

    spans: list[Span]


class AgentLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """Report: the agent is loaded. `seconds` is near 0 where the process inherited the loaded agent."""

    seconds: float


class FrameworkSpans(msgspec.Struct, frozen=True, tag="spans"):
    """Report: spans of frameworks that have ended."""

    spans: list[Span]


class EmittedSpans(msgspec.Struct, frozen=True, tag="notes"):
    """Report: spans that emitters and the run wrote since the last report, and the stage that the run waits for."""

    spans: list[Span]
    stage: Stage


class AgentEnded(msgspec.Struct, frozen=True, tag="done"):
    """Last report: the agent and its reward function have ended."""

    failure: Failure | None
    made_no_call: list[str] = []
    """Possible reasons why the agent made no model call. Empty where it made one."""
    imported: list[str] = []
    """Modules of libraries that were imported meanwhile."""


Report = AgentLoaded | FrameworkSpans | EmittedSpans | AgentEnded
report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
begin_decoder = msgspec.msgpack.Decoder(BeginAttempt)
end_decoder = msgspec.msgpack.Decoder(AttemptMarked)


async def send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Write one message, whose spans are ready (`span_entry.ready`). Raises OSError when the other side is gone."""
    body = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(body)) + body)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Read one message. Returns None at the end of the stream, however it ended."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
