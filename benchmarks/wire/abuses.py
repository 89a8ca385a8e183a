"""What one attempt, or somebody without a token, can do to a gateway: each until it is stopped."""

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

MEGABYTES = 4 << 20
AT_ONCE = 64
SENTENCE = "The quick brown fox jumps over 12 lazy dogs, and nobody looks up.\n"


@dataclass(slots=True)
class Aim:
    """The gateway, an attempt's path there, and what it has answered so far."""

    port: int
    path: str
    until: float
    answers: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def over(self) -> bool:
        """Whether it is time to stop."""
        return time.monotonic() >= self.until

    def request(self, body: bytes, path: str | None = None, head: str = "") -> bytes:
        """Return the bytes of a request."""
        start = f"POST {path or self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}content-length: {len(body)}\r\n\r\n"
        return start.encode() + body

    def note(self, answer: str) -> None:
        """Count an answer."""
        self.answers[answer] = self.answers.get(answer, 0) + 1


Abuse: TypeAlias = Callable[[Aim], Awaitable[None]]


def chat(*contents: str, **more: object) -> bytes:
    """JSON of a call."""
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


async def repeat(aim: Aim, request: bytes, at_once: int) -> None:
    """Send the same request again and again, over so many connections."""
    await asyncio.gather(*(_repeat(aim, request) for _ in range(at_once)))


async def _repeat(aim: Aim, request: bytes) -> None:
    while not aim.over:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", aim.port)
        except OSError:
            aim.note("not connected")
            await asyncio.sleep(0.01)
            continue
        try:
            while not aim.over:
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
                aim.note(head[9:12].decode())
                if b"connection: close" in head:
                    break
        except (OSError, EOFError):
            aim.note("broken off")
        finally:
            writer.close()


async def long_prompts(aim: Aim) -> None:
    """Calls with prompts of four megabytes."""
    await repeat(aim, aim.request(chat(SENTENCE * (MEGABYTES // len(SENTENCE)))), 4)


async def counts(aim: Aim) -> None:
    """Counts of the tokens of a megabyte."""
    body = json.dumps({"model": "m", "input": SENTENCE * ((1 << 20) // len(SENTENCE))}).encode()
    await repeat(aim, aim.request(body, aim.path.replace("chat/completions", "responses/input_tokens")), 8)


async def calls_at_once(aim: Aim) -> None:
    """Short calls over 64 connections."""
    await repeat(aim, aim.request(chat("hi")), AT_ONCE)


async def compressed(aim: Aim) -> None:
    """Kilobytes that stand for 15 megabytes."""
    packed = gzip.compress(chat("a" * (15 << 20)))
    await repeat(aim, aim.request(packed, head="content-encoding: gzip\r\n"), 8)


async def slow_writers(aim: Aim) -> None:
    """Many requests of a megabyte that never come to an end."""
    request = aim.request(chat("a" * (1 << 20)))
    lines: list[asyncio.StreamWriter] = []
    with contextlib.suppress(OSError):
        for _ in range(200):
            if not aim.over:
                lines.append((await asyncio.open_connection("127.0.0.1", aim.port))[1])
    at = 0
    while not aim.over:
        for writer in lines:
            writer.write(request[at : at + 4096])
        at = min(at + 4096, len(request) - 8192)
        await asyncio.sleep(0.02)
    for writer in lines:
        writer.close()


async def slow_readers(aim: Aim) -> None:
    """Streams of 128 choices that nobody reads."""
    request = aim.request(chat("hi", n=128, stream=True, logprobs=True, top_logprobs=5))
    lines: list[asyncio.StreamWriter] = []
    while not aim.over and len(lines) < 200:
        _, writer = await asyncio.open_connection("127.0.0.1", aim.port, limit=1 << 12)
        writer.write(request)
        lines.append(writer)
        await asyncio.sleep(0.005)
    while not aim.over:
        await asyncio.sleep(0.05)
    for writer in lines:
        writer.transport.abort()


async def idle_connections(aim: Aim) -> None:
    """Connections without a token on which nothing is sent: thousands of them, again and again."""
    lines: list[asyncio.StreamWriter] = []
    while not aim.over:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", aim.port)
        except OSError:  # no more files here
            for line in lines[:100]:
                line.close()
            del lines[:100]
            await asyncio.sleep(0.01)
            continue
        aim.note("opened")
        lines.append(writer)
    for writer in lines:
        writer.transport.abort()


async def deep_json(aim: Aim) -> None:
    """Bodies that are nothing but lists in lists, and lists beside lists."""
    many = b"[" + b"[]," * 1_000_000 + b"[]]"
    await asyncio.gather(
        repeat(aim, aim.request(b'{"model":"m","messages":' + many + b"}"), 4),
        repeat(aim, aim.request(b'{"model":"m","messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), 4),
    )


async def many_tools(aim: Aim) -> None:
    """Ten thousand tools in each call."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "what it is"}}}
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "parameters": schema}} for n in range(10_000)]
    await repeat(aim, aim.request(chat("hi", tools=tools)), 4)


async def many_messages(aim: Aim) -> None:
    """Twenty thousand messages in each call, for the loops of the template."""
    await repeat(aim, aim.request(chat(*["hi"] * 20_000)), 4)


ABUSES: dict[str, Abuse] = {
    abuse.__name__: abuse
    for abuse in (
        long_prompts, counts, calls_at_once, compressed, slow_writers,
        slow_readers, idle_connections, deep_json, many_tools, many_messages,
    )
}  # fmt: skip
