"""Many spans are answered while they are read, and as one read would have given them."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from leyden.core.data.page import Page
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore
from leyden.core.store.http import streaming
from leyden.core.store.http.client import HttpStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_contract.shared import claimed, span_of

SPANS = 25
CALL: dict[str, Any] = {"limit": -1, "offset": 0}


@pytest.fixture(params=["memory", "sqlite"])
async def behind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[LightningStore]:
    store = MemoryStore() if request.param == "memory" else await SqlStore.open(tmp_path / "store.db", recheck=60)
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SPANS", 4)


async def filled(store: LightningStore) -> Attempt:
    attempt = (await claimed(store)).attempt
    await store.add_many_spans([span_of(attempt, f"{n:x}", 2 * n, name=f"s{n % 3}") for n in range(1, SPANS + 1)])
    return attempt


async def test_every_query_is_answered_as_by_the_store_itself(server: StoreServer, behind: LightningStore) -> None:
    attempt = await filled(behind)
    store = HttpStore(server.add(behind), TOKEN, 5.0)
    queries: list[dict[str, Any]] = [
        {},
        {"limit": 0},
        {"limit": 3},
        {"limit": 4},
        {"limit": 9},
        {"limit": 99},
        {"offset": 7},
        {"offset": 7, "limit": 12},
        {"offset": 24},
        {"offset": 99},
        {"attempt_id": "latest", "sort_order": "desc"},
        {"name": "s1"},
        {"sort_by": "name", "limit": 10},
        {"name_contains": "nothing"},
    ]
    for query in queries:
        assert await store.query_spans(attempt.rollout_id, **query) == await behind.query_spans(
            attempt.rollout_id, **query
        ), query
    assert (await store.query_spans("ro-unknown")).items == []
    with pytest.raises(ValueError, match="cannot sort by 'x'"):
        await store.query_spans(attempt.rollout_id, sort_by="x")
    await store.close()


async def test_json_is_streamed_as_well(server: StoreServer) -> None:
    behind = MemoryStore()
    attempt = await filled(behind)
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    call = msgspec.json.encode({"rollout_id": attempt.rollout_id})
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{server.add(behind)}/query_spans", data=call) as answer,
    ):
        assert answer.headers.get("content-length") is None
        page = msgspec.json.decode(await answer.read(), type=Page[Span])
    assert page == await behind.query_spans(attempt.rollout_id)


async def gathered(store: LightningStore, call: dict[str, Any], *, before_page: int, add: Span) -> Page[Span]:
    """Read a stream in which a span comes in before a page is read."""
    parts: list[bytes] = []
    async for part in streaming.whole(store, call, json=True):
        parts.append(part)
        if len(parts) == before_page:
            await store.add_span(add)
    return msgspec.json.decode(b"".join(parts), type=Page[Span])


async def test_a_span_that_comes_at_the_end_changes_nothing(behind: LightningStore) -> None:
    attempt = await filled(behind)
    call = {**CALL, "rollout_id": attempt.rollout_id}
    before = await behind.query_spans(attempt.rollout_id)
    assert await gathered(behind, call, before_page=3, add=span_of(attempt, "ff")) == before


@pytest.mark.parametrize("number", [1, 9, 21, 49])
async def test_a_span_that_moves_others_cuts_the_answer_off(behind: LightningStore, number: int) -> None:
    attempt = await filled(behind)
    call = {**CALL, "rollout_id": attempt.rollout_id}
    with pytest.raises(streaming.PagesShifted):
        await gathered(behind, call, before_page=3, add=span_of(attempt, "ff", number))


async def test_an_answer_that_is_cut_off_is_asked_for_again(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = MemoryStore()
    attempt = await filled(behind)
    ask, asked = behind.query_spans, list[int]()

    async def moved(*arguments: Any, **named: Any) -> Page[Span]:
        asked.append(1)
        if len(asked) == 4:
            await behind.add_span(span_of(attempt, "ff", 1))
        return await ask(*arguments, **named)

    monkeypatch.setattr(behind, "query_spans", moved)
    store = HttpStore(server.add(behind), TOKEN, 5.0)
    page = await store.query_spans(attempt.rollout_id)
    assert [span.sequence_id for span in page] == [1, *range(2, 2 * SPANS + 1, 2)]
    await store.close()


async def test_no_more_than_a_page_is_read_at_once(behind: LightningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = await filled(behind)
    ask, largest = behind.query_spans, list[int]()

    async def counted(*arguments: Any, **named: Any) -> Page[Span]:
        page = await ask(*arguments, **named)
        largest.append(len(page.items))
        return page

    monkeypatch.setattr(behind, "query_spans", counted)
    call = {**CALL, "rollout_id": attempt.rollout_id}
    assert await streaming.small(behind, call) is None
    assert len([part async for part in streaming.whole(behind, call, json=False)]) == 2 + 7
    assert max(largest) == 4
