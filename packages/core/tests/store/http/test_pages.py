"""What people see of a store's server: JSON, the OpenAPI page, `/docs`."""

import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec
import pytest
from starlette.routing import Route

from leyden.core.data.rollout import RolloutConfig
from leyden.core.store.http.pages import docs_page, openapi_document
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.store.rpc import methods
from leyden.core.testing.servers.store_server import TOKEN, StoreServer, accepts
from leyden.core.testing.store_contract.shared import claimed, span_of

PAGE: dict[str, Any] = msgspec.json.decode(openapi_document())


@pytest.fixture
def behind() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def http(server: StoreServer, behind: MemoryStore) -> AsyncGenerator[httpx.AsyncClient]:
    url = server.add(behind)
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
        yield http


def test_the_page_has_every_method_and_every_route() -> None:
    routes = {route.path for route in store_app(MemoryStore(), authorize=accepts).routes if isinstance(route, Route)}
    assert set(PAGE["paths"]) == (routes - {"/{method}"}) | {f"/{name}" for name in methods()}
    assert PAGE["paths"]["/update_attempt"]["post"]["summary"].startswith("Change fields of an attempt")
    writes = {p for p, known in PAGE["paths"].items() if known.get("post", {}).get("parameters")}
    assert writes == {f"/{name}" for name, method in methods().items() if method.writes}


def test_every_reference_leads_somewhere() -> None:
    references: list[str] = re.findall(r'"\$ref":"#/([^"]+)"', openapi_document().decode())
    assert references
    for reference in references:
        place: Any = PAGE
        for part in reference.split("/"):
            place = place[part]


def test_docs_are_whole_without_anything_from_elsewhere() -> None:
    page = docs_page()
    for name in methods():
        assert f"POST /{name}" in page
    assert not re.search(r"<script|src=|https?://", page)
    for link in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{link}"' in page


async def test_pages_need_no_token(http: httpx.AsyncClient, behind: MemoryStore) -> None:
    rollout = await behind.enqueue_rollout("a secret question")
    for path in ("/healthz", "/metrics", "/openapi.json", "/docs"):
        answer = await http.get(path, headers={"authorization": ""})
        assert answer.status_code == 200
        assert rollout.rollout_id not in answer.text and "secret" not in answer.text
        assert (await http.post(path)).status_code == 404


async def test_methods_speak_json(http: httpx.AsyncClient, behind: MemoryStore) -> None:
    queued = await http.post("/enqueue_rollout", json={"input": {"q": 1}, "config": {"max_attempts": 2}})
    assert (queued.status_code, queued.headers["content-type"]) == (200, "application/json")
    found = await behind.get_rollout_by_id(queued.json()["rollout_id"])
    assert found is not None and found.config == RolloutConfig(max_attempts=2)
    got = (await http.post("/dequeue_rollout", headers={"content-type": "application/json"})).json()
    assert got["attempt"]["sequence_id"] == 1
    span = {
        "rollout_id": got["rollout_id"],
        "attempt_id": got["attempt"]["attempt_id"],
        "sequence_id": 0,
        "trace_id": "0" * 32,
        "span_id": "1" * 16,
        "name": "by hand",
        "start_time": 1.0,
        "attributes": {"n": [1, 2]},
    }
    assert (await http.post("/add_span", json={"span": span})).json()["sequence_id"] == 1
    assert (await http.post("/add_span", json={"span": span})).json() is None
    page = (await http.post("/query_spans", json={"rollout_id": got["rollout_id"]})).json()
    assert [item["attributes"] for item in page["items"]] == [{"n": [1, 2]}]
    accepted = {"accept": "application/json", "content-type": "application/msgpack"}
    counts = await http.post("/statistics", content=b"\x80", headers=accepted)
    assert counts.json()["total_spans"] == 1


async def test_what_is_refused_in_json(http: httpx.AsyncClient) -> None:
    cases: list[tuple[str, bytes, str, int, str, str]] = [
        ("/start_attempt", b'{"rollout_id":"ro-x"}', TOKEN, 422, "NotFound", "there is no rollout ro-x"),
        ("/enqueue_rollout", b"{", TOKEN, 400, "Refused", "not a call of enqueue_rollout"),
        ("/enqueue_rollout", b'{"inputs":1}', TOKEN, 400, "Refused", "not a call of enqueue_rollout"),
        ("/no_such", b"{}", TOKEN, 404, "Refused", "no method"),
        ("/together", b"[]", TOKEN, 415, "Refused", "must be MessagePack"),
        ("/statistics", b"{}", "wrong", 401, "Refused", "valid bearer token"),
    ]
    for path, body, token, status, kind, said in cases:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        answer = await http.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (status, kind), path
        assert said in answer.json()["message"]


async def test_a_name_makes_a_call_in_json_idempotent(http: httpx.AsyncClient, behind: MemoryStore) -> None:
    first = [await http.post("/enqueue_rollout", json={"input": 1}, headers={"idempotency-key": "k"}) for _ in range(3)]
    assert len({answer.json()["rollout_id"] for answer in first}) == 1
    assert (await behind.statistics())["queue_length"] == 1
    other = await http.post("/enqueue_rollout", json={"input": 2}, headers={"idempotency-key": "k"})
    assert other.json()["input"] == 2  # another call, though by the same name
    claim = await http.post("/dequeue_rollout", headers={"idempotency-key": "k", "content-type": "application/json"})
    assert claim.json()["input"] == 1


async def test_numbers_that_cannot_be_shown_are_said(
    http: httpx.AsyncClient, behind: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> dict[str, Any]:
        raise RuntimeError("disk gone")

    monkeypatch.setattr(behind, "statistics", broken)
    answer = await http.get("/metrics")
    assert (answer.status_code, answer.text) == (503, "the store failed; its log has the reason")
    assert "disk gone" in caplog.text


async def test_spans_are_answered_with_their_numbers_alone_if_asked(
    http: httpx.AsyncClient, behind: MemoryStore
) -> None:
    attempt = (await claimed(behind)).attempt
    spans = [span_of(attempt, name) for name in ("1", "2", "1", "3")]
    body = msgspec.msgpack.encode({"spans": spans})
    answer = await http.post("/add_many_spans", content=body, headers={"prefer": "return=minimal"})
    assert msgspec.msgpack.decode(answer.content) == [1, 2, 0, 3]
