"""What one attempt can do to a store's server: `python -m stores.abuses NAME URL TOKEN ROLLOUT ATTEMPT SECONDS`.

Prints how its requests were answered, by status, as JSON. Requests are made before the clock runs and sent over bare
connections, so that the abuser costs the machine little beside what it costs the server.
"""

import asyncio
import gzip
import json
import sys
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec

from leyden.core.data.rollout import Attempt
from leyden.core.store.rpc import BatchPart, methods
from stores.material import make_spans

MSGPACK, PROTOBUF = "application/msgpack", "application/x-protobuf"
_CONNECTED_SECONDS = 0.5


class Abuser:
    """Sends to a server with the token of one attempt."""

    def __init__(self, url: str, token: str, attempt: Attempt) -> None:
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port or 80
        self._token, self.attempt = token, attempt
        self.answers: Counter[str] = Counter()

    def request(
        self, path: str, body: bytes, kind: str = MSGPACK, *, packed: bool = False, length: int | None = None
    ) -> bytes:
        """A whole request, or one that says it is longer."""
        lines = [
            f"POST /{path} HTTP/1.1",
            f"host: {self._host}:{self._port}",
            f"authorization: Bearer {self._token}",
            f"content-type: {kind}",
            f"content-length: {len(body) if length is None else length}",
            *(["content-encoding: gzip"] if packed else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def repeat(self, connections: int, request: Callable[[], bytes], *, pause: float = 0.0) -> None:
        """Send requests over connections that are kept, each when the one before is answered."""

        async def one() -> None:
            while True:
                try:
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                    try:
                        while True:
                            writer.write(request())
                            await writer.drain()
                            await self._answer(reader)
                            await asyncio.sleep(pause)
                    finally:
                        writer.close()
                except (OSError, asyncio.IncompleteReadError):
                    self.answers["closed"] += 1
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(one() for _ in range(connections)))

    async def hold(self, connections: int, begin: bytes, piece: bytes = b"", *, gap: float = 1e6) -> None:
        """Open connections, send a beginning and then piece by piece, and open them again when they are closed."""

        async def one() -> None:
            while True:
                try:
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                    writer.write(begin)
                    answer = asyncio.ensure_future(self._answer(reader))
                    while not answer.done():
                        await asyncio.wait([answer], timeout=gap)
                        writer.write(piece)
                    writer.close()
                    answer.result()
                except (OSError, asyncio.IncompleteReadError):
                    self.answers["closed"] += 1
                await asyncio.sleep(0.01)

        await asyncio.gather(*(one() for _ in range(connections)))

    async def connect(self, connections: int) -> None:
        """Open many connections without a token, and all of them again as soon as they are there."""
        while True:
            opened = [asyncio.open_connection(self._host, self._port) for _ in range(connections)]
            for found in await asyncio.gather(*opened, return_exceptions=True):
                if isinstance(found, BaseException):
                    self.answers["closed"] += 1
                else:
                    self.answers["opened"] += 1
                    found[1].close()
            await asyncio.sleep(_CONNECTED_SECONDS)

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        self.answers[head.split(b" ", 2)[1].decode()] += 1
        if b"transfer-encoding: chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))


def many_parts(abuser: Abuser) -> Awaitable[None]:
    """Two million calls in a few kilobytes of gzip."""
    one, count = msgspec.msgpack.encode(BatchPart("x", "", b"")), 2_000_000
    body = gzip.compress(b"\xdd" + count.to_bytes(4, "big") + one * count)
    request = abuser.request("together", body, packed=True)
    return abuser.repeat(4, lambda: request)


def allowed_parts(abuser: Abuser) -> Awaitable[None]:
    """As many calls in a request as an agent may send, each of which stores a span."""
    numbers = iter(range(1_000_000, 2_000_000_000, 256))

    def request() -> bytes:
        spans = make_spans("light", [abuser.attempt] * 16, 256, next(numbers))
        return abuser.request(
            "together", msgspec.msgpack.encode([BatchPart("add_span", "", _call(span)) for span in spans])
        )

    return abuser.repeat(4, request)


def gzip_bomb(abuser: Abuser) -> Awaitable[None]:
    """A gigabyte in a megabyte."""
    request = abuser.request("add_many_spans", gzip.compress(bytes(1 << 30), 1), packed=True)
    return abuser.repeat(4, lambda: request)


def allowed_bomb(abuser: Abuser) -> Awaitable[None]:
    """As many bytes as a request may have in 64 kilobytes, and they are no call."""
    request = abuser.request("add_many_spans", gzip.compress(bytes(64 << 20)), packed=True)
    return abuser.repeat(4, lambda: request)


def empty_spans(abuser: Abuser) -> Awaitable[None]:
    """Five million spans by OTLP in ten kilobytes of gzip."""
    request = abuser.request("v1/traces", gzip.compress(_otlp(5_000_000)), PROTOBUF, packed=True)
    return abuser.repeat(4, lambda: request)


def allowed_empty_spans(abuser: Abuser) -> Awaitable[None]:
    """As many spans by OTLP as an agent may send at once, without anything in them."""
    request = abuser.request("v1/traces", _otlp(4_096), PROTOBUF)
    return abuser.repeat(4, lambda: request)


def many_values(abuser: Abuser) -> Awaitable[None]:
    """A span with nearly as many values as an agent may send at once."""
    [span] = make_spans("light", [abuser.attempt], 1)
    span = msgspec.structs.replace(span, attributes={f"{n:x}": n for n in range(124_000)})
    request = abuser.request("add_span", _call(span))
    return abuser.repeat(4, lambda: request)


def many_spans(abuser: Abuser) -> Awaitable[None]:
    """As many spans in a call as an agent may store."""
    numbers = iter(range(1_000_000, 2_000_000_000, 4_096))

    def request() -> bytes:
        spans = make_spans("light", [abuser.attempt] * 205, 4_096, next(numbers))
        return abuser.request("add_many_spans", methods()["add_many_spans"].encode_call(spans))

    return abuser.repeat(4, request, pause=0.2)  # in which the abuser makes the next


def stalled_bodies(abuser: Abuser) -> Awaitable[None]:
    """Compressed bodies that stand for nearly as much as a request may have, and never end."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    body = packer.compress(bytes(63 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    begin = abuser.request("add_many_spans", body, packed=True, length=len(body) + 1000)
    return abuser.hold(64, begin)


def dripping_bodies(abuser: Abuser) -> Awaitable[None]:
    """Bodies that come byte by byte."""
    return abuser.hold(64, abuser.request("add_span", b"", length=60_000_000), b"\x80", gap=0.05)


def requests(abuser: Abuser) -> Awaitable[None]:
    """Small requests over many connections, each as soon as the one before is answered."""
    request = abuser.request("get_next_span_sequence_id", _pair(abuser.attempt))
    return abuser.repeat(200, lambda: request)


def queries(abuser: Abuser) -> Awaitable[None]:
    """Queries for all that the attempt has stored, hundreds of spans."""
    request = abuser.request("query_spans", _pair(abuser.attempt))
    return abuser.repeat(32, lambda: request)


def connections(abuser: Abuser) -> Awaitable[None]:
    """A thousand connections that send nothing, opened again and again."""
    return abuser.connect(1000)


ABUSES = (
    many_parts,
    allowed_parts,
    gzip_bomb,
    allowed_bomb,
    empty_spans,
    allowed_empty_spans,
    many_values,
    many_spans,
    stalled_bodies,
    dripping_bodies,
    requests,
    queries,
    connections,
)


def _call(span: object) -> bytes:
    return methods()["add_span"].encode_call(span)


def _pair(attempt: Attempt) -> bytes:
    return msgspec.msgpack.encode({"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id})


def _otlp(spans: int) -> bytes:
    scope = b"\x12\x00" * spans
    resource = b"\x12" + _varint(len(scope)) + scope
    return b"\x0a" + _varint(len(resource)) + resource


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


async def _abuse(name: str, abuser: Abuser) -> None:
    """Say that the requests are made, wait for a line, and send until there is another."""
    loop = asyncio.get_running_loop()
    abuse = next(each for each in ABUSES if each.__name__ == name)(abuser)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    sending = asyncio.ensure_future(abuse)
    await loop.run_in_executor(None, sys.stdin.readline)
    if sending.done():
        sending.result()
    sending.cancel()


def main() -> None:
    """Abuse a server."""
    name, url, token, rollout_id, attempt_id = sys.argv[1:]
    attempt = Attempt(rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=1, start_time=0.0, status="running")
    abuser = Abuser(url, token, attempt)
    asyncio.run(_abuse(name, abuser))
    print(json.dumps(abuser.answers), flush=True)


if __name__ == "__main__":
    main()
