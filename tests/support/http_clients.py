"""A fixture for tests of agents, whose frameworks make HTTP clients and leave them to Python's garbage collector."""

import sys
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest


@pytest.fixture
async def closed_http_clients(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """Close what clients were made in the test, on the event loop that their connections belong to.

    langchain-openai keeps its own for later models of the same URL: it forgets them.
    """
    made: list[Any] = []
    for kind in (httpx.Client, httpx.AsyncClient):
        monkeypatch.setattr(kind, "__init__", _noting(kind, made))
    yield
    for client in made:
        if isinstance(client, httpx.AsyncClient):
            await client.aclose()
        else:
            client.close()
    kept: Any = sys.modules.get("langchain_openai.chat_models._client_utils")
    if kept is not None:  # private: there is no other way to them
        kept._cached_sync_httpx_client.cache_clear()
        kept._cached_async_httpx_client.cache_clear()


def _noting(kind: type, made: list[Any]) -> Any:
    original: Any = kind.__init__

    def noted(client: Any, *arguments: Any, **options: Any) -> None:
        made.append(client)
        original(client, *arguments, **options)

    return noted
