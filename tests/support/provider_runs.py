"""Gateways in front of the servers of `provider_servers`, with one open attempt and no other network."""

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from planted import random_of
from provider_formats import PROVIDERS, Provider, Request
from provider_servers import ProviderServer, provider_server

from leyden.core.data.encoding.provider_model import read_provider_model
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.provider import ProviderUpstream
from leyden.core.store.memory import MemoryStore

KEY = random_of("a provider's key")
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


class Run:
    """A gateway in front of a provider's server, with one open attempt."""

    def __init__(
        self, formats: Provider, server: ProviderServer, store: MemoryStore, rollout_id: str, url: str
    ) -> None:
        self.formats, self.server, self.base_url = formats, server, url
        self._store, self._rollout_id = store, rollout_id

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key="sk-the-agents", max_retries=0)

    async def post(self, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=20) as http:
            body = {"model": "gpt-4.1", "messages": USER, **fields}
            return await http.post(f"{self.base_url}/chat/completions", json=body)

    async def spans(self) -> list[Span]:
        return (await self._store.query_spans(self._rollout_id)).items

    @property
    def request(self) -> Request:
        [request] = self.server.requests
        return request


@contextmanager
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Let nothing be looked up except this machine's loopback; fails at the end if something else was."""
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def only_here(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", None):
            asked.append(str(host))
            raise OSError(f"{host} was looked up")
        return look_up(host, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", only_here)
        yield
    assert asked == []


@asynccontextmanager
async def running(
    name: str, monkeypatch: pytest.MonkeyPatch, *, model: str | None = None, timeout: float = 20.0
) -> AsyncGenerator[Run]:
    formats, store, key = PROVIDERS[name], MemoryStore(), new_key()
    with only_loopback(monkeypatch), provider_server(name) as server:
        for variable, value in formats.variables(server.url, KEY).items():
            monkeypatch.setenv(variable, value)
        given = read_provider_model(model or formats.model)
        assert given is not None
        upstream = ProviderUpstream(given, timeout=timeout)
        gateway = GatewayServer(Gateway(store, upstream, key).app)
        here = await gateway.start()
        rollout = await store.start_rollout("task")
        token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
        try:
            yield Run(formats, server, store, rollout.rollout_id, f"{here}/a/{token}/v1")
        finally:
            server.go.set()
            await gateway.stop()
