"""Agents at work at `leyden gateway`, each with an attempt of its own, and what the store must then hold of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from leyden.core.data import semconv
from leyden.core.data.production import CaptureBegin, CaptureBegun
from leyden.core.data.span import Span
from leyden.core.store.open import open_store

SECONDS = 60
MAX_TOKENS = 12


class Agents:
    """Agents that make one call after the other, without retries."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self._stopped = asyncio.Event()
        self.answered: list[str] = []
        """Ids of the answers that arrived in full."""
        self.interrupted = 0
        """Calls whose connection failed."""
        self.refused: list[str] = []
        """Answers with an error status."""

    @asynccontextmanager
    async def at_work(self, count: int) -> AsyncGenerator[None]:
        """Let so many agents work inside the block; on leaving, each ends its call."""
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._work(number))
            try:
                yield
            finally:
                self._stopped.set()

    async def answer_more(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.answered) + count
        async with asyncio.timeout(SECONDS):
            while len(self.answered) < wanted:
                await asyncio.sleep(0.01)

    async def _work(self, number: int) -> None:
        base_url = await self._begin()
        call = 0
        while not self._stopped.is_set():
            try:
                async with httpx.AsyncClient(timeout=SECONDS) as http:
                    while not self._stopped.is_set():
                        call += 1
                        stream = call % 3 == 0
                        self._note(await http.post(base_url, json=_body(f"{number}.{call}", stream=stream)))
            except httpx.TransportError:
                self.interrupted += 1
                await asyncio.sleep(0.05)

    async def _begin(self) -> str:
        async with httpx.AsyncClient(timeout=SECONDS) as http:
            answer = await http.post(
                f"{self._url}/capture/begin",
                content=msgspec.msgpack.encode(CaptureBegin(task="under load")),
                headers={"authorization": f"Bearer {self._token}"},
            )
        begun = msgspec.msgpack.decode(answer.content, type=CaptureBegun)
        return f"{self._url}/a/{begun.token}/v1/chat/completions"

    def _note(self, answer: httpx.Response) -> None:
        if answer.status_code != 200 or '"error"' in answer.text:
            self.refused.append(answer.text)
        elif answer.text.startswith("data:"):
            assert answer.text.endswith("data: [DONE]\n\n")
            self.answered.append(msgspec.json.decode(answer.text[5:].partition("\n")[0])["id"])
        else:
            self.answered.append(answer.json()["id"])


def _body(question: str, *, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": question}]
    return {"model": "m", "max_tokens": MAX_TOKENS, "messages": messages, "stream": stream, "logprobs": True}


async def recorded_calls(path: Path) -> list[Span]:
    """Return the records of all calls in a SQLite file."""
    store = await open_store(f"sqlite:///{path}")
    try:
        spans: list[Span] = []
        for rollout in await store.query_rollouts():
            spans += (await store.query_spans(rollout.rollout_id)).items
    finally:
        await store.close()
    return [span for span in spans if semconv.CALL_ID in span.attributes]


def records_of(calls: list[Span]) -> Counter[str]:
    """Return how many records each answer has, by its id."""
    return Counter(str(call.attributes[semconv.RESPONSE_ID]) for call in calls)
