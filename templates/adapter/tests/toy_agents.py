"""A framework of agents in one file, which knows nothing of Leyden: agents with tools and a memory, and teams of them.

What happens is told to `listeners`, in the context in which it happens.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

_ids = count()
_TLS = ssl.create_default_context()  # made once: it reads all root certificates
_inside: ContextVar[int | None] = ContextVar("toy_agents", default=None)


@dataclass
class Event:
    """Something begins, or has ended."""

    kind: str
    """`team`, `agent`, `model` or `tool`."""
    name: str
    parent: int | None
    call_id: str | None = None
    arguments: dict[str, Any] | None = None
    id: int = field(default_factory=lambda: next(_ids))
    ended: bool = False
    result: Any = None
    error: BaseException | None = None


listeners: list[Callable[[Event], None]] = []


@contextmanager
def _told(kind: str, name: str, **more: Any) -> Generator[Event]:
    """Tell of what happens in the block."""
    event = Event(kind, name, _inside.get(), **more)
    above = _inside.get()
    _inside.set(event.id)
    for listener in listeners:
        listener(event)
    try:
        yield event
    except BaseException as error:
        event.error = error
        raise
    finally:
        event.ended = True
        _inside.set(above)
        for listener in listeners:
            listener(event)


@dataclass
class Agent:
    """Asks its model until that calls no more tools. It remembers what was said."""

    name: str
    base_url: str
    api_key: str
    tools: list[Callable[..., Any]] = field(default_factory=list[Callable[..., Any]])
    model: str = "gpt-4.1-mini"
    stream: bool = False
    retries: int = 0
    memory: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def run(self, text: str) -> str:
        """Return the answer to `text`."""
        with _told("agent", self.name):
            self.memory.append({"role": "user", "content": text})
            while True:
                said = [message async for message in self._ask()][-1]
                self.memory.append(said)
                if not said.get("tool_calls"):
                    return said["content"]
                for call in said["tool_calls"]:
                    self.memory.append(self._use(call))

    async def stream_answer(self, text: str) -> AsyncGenerator[str]:
        """Yield what the model has said so far, as it arrives, without calling tools."""
        with _told("agent", self.name):
            self.memory.append({"role": "user", "content": text})
            async for said in self._ask():
                yield str(said["content"])

    async def _ask(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield the model's message, as far as it has arrived."""
        body: dict[str, Any] = {"model": self.model, "messages": self.memory, "temperature": 0, "stream": self.stream}
        if self.tools:
            body["tools"] = [_described(tool) for tool in self.tools]
        with _told("model", self.model):
            async with httpx.AsyncClient(timeout=60, verify=_TLS) as client:
                for tried in range(self.retries + 1):
                    headers = {"authorization": f"Bearer {self.api_key}", "x-stainless-retry-count": str(tried)}
                    url = f"{self.base_url}/chat/completions"
                    async with client.stream("POST", url, json=body, headers=headers) as answer:
                        if answer.status_code >= 500 and tried < self.retries:
                            continue
                        answer.raise_for_status()
                        async for said in self._read(answer):
                            yield said
                        return

    async def _read(self, answer: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
        if not self.stream:
            await answer.aread()
            yield answer.json()["choices"][0]["message"]
            return
        said: dict[str, Any] = {"role": "assistant", "content": ""}
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and (choices := json.loads(line.removeprefix("data: "))["choices"]):
                _join(said, choices[0]["delta"])
                yield said

    def _use(self, call: dict[str, Any]) -> dict[str, Any]:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        tool = next(tool for tool in self.tools if tool.__name__ == name)
        with _told("tool", name, call_id=call["id"], arguments=arguments) as event:
            event.result = tool(**arguments)
        return {"role": "tool", "tool_call_id": call["id"], "content": str(event.result)}


@dataclass
class Team:
    """Asks all its members at once, each by its name."""

    name: str
    members: list[Agent]

    async def run(self, text: str) -> list[str]:
        """Return what each member answers."""
        with _told("team", self.name):
            return list(await asyncio.gather(*(member.run(f"{member.name} {text}") for member in self.members)))


def _described(tool: Callable[..., Any]) -> dict[str, Any]:
    properties = {name: {"type": "integer"} for name in tool.__annotations__ if name != "return"}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters},
    }


def _join(said: dict[str, Any], delta: dict[str, Any]) -> None:
    """Put a piece of a streamed message to what came before."""
    said["content"] += delta.get("content") or ""
    for piece in delta.get("tool_calls") or ():
        calls: list[dict[str, Any]] = said.setdefault("tool_calls", [])
        if piece["index"] == len(calls):
            calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
        for key, value in piece["function"].items():
            calls[piece["index"]]["function"][key] += value or ""
