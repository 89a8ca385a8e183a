"""Messages between a runner and the process of one attempt: length-prefixed MessagePack over a socket."""

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


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to run; the first message to it."""

    rollout: AttemptedRollout
    token: str
    gateway_url: str
    trace_id: str
    mode: RolloutMode | None
    routes: tuple[Route, ...]
    resources: NamedResources
    folder: str
    """Where frameworks may keep what they keep on disk by default; need not exist."""
    worker_id: str
    store: tuple[str, str] | None
    """URL and token of the store, where there are hooks that may use it."""


class End(msgspec.Struct, frozen=True):
    """The attempt is marked, and `spans` is all that is stored of it; sent only where there are hooks."""

    spans: list[Span]


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The agent is there, after so many seconds, which are next to none where the process had it when it began."""

    seconds: float


class Spans(msgspec.Struct, frozen=True, tag="spans"):
    """Spans of frameworks that have ended."""

    spans: list[Span]


class Notes(msgspec.Struct, frozen=True, tag="notes"):
    """Spans that emitters and the run itself wrote since the last message, and what is now being waited for."""

    spans: list[Span]
    stage: Stage


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The agent and its reward have ended; everything else was sent before."""

    failure: Failure | None
    made_no_call: list[str] = []
    """Why the agent may have made no model call; empty where it made one."""
    imported: list[str] = []
    """Modules of libraries that were imported meanwhile."""


Report = Loaded | Spans | Notes | Done
report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
begin_decoder = msgspec.msgpack.Decoder(Begin)
end_decoder = msgspec.msgpack.Decoder(End)


async def send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Write one message, whose spans are ready (`span_entry.ready`). Raises OSError when the other side is gone."""
    body = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(body)) + body)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Read one message; None at the end of the stream, however it ended."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
