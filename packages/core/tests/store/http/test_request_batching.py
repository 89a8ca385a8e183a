"""Small calls that are made at once travel in one request, and each is answered as it would be alone."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from leyden.core.data.span import Span
from leyden.core.errors import NotFound, StoreError
from leyden.core.store.http.client import HttpStore
from leyden.core.store.http.connection import Connection
from leyden.core.store.http.request_batching import MOST, RequestBatcher, ServerAnswer
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.store.rpc import BATCH_PATH, BatchPart, BatchPartAnswer, methods
from leyden.core.testing.servers.store_server import TOKEN, LosesAnswers, StoreServer, accepts
from leyden.core.testing.store_contract.shared import MISSING, claimed, span_of


@pytest.fixture
def flaky() -> LosesAnswers:
    return LosesAnswers(store_app(MemoryStore(), authorize=accepts))


@pytest.fixture
async def store(server: StoreServer, flaky: LosesAnswers) -> AsyncGenerator[HttpStore]:
    store = HttpStore(server.add_app(flaky), TOKEN, 5.0)
    yield store
    await store.close()


async def test_a_crowd_travels_in_few_requests_and_each_gets_its_own_answer(
    store: HttpStore, flaky: LosesAnswers
) -> None:
    got = await claimed(store)
    before = flaky.calls
    adding = [store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(2 * MOST)]
    wrong = store.update_attempt(MISSING, "latest", status="running")
    answers = await asyncio.gather(wrong, *adding, return_exceptions=True)
    assert flaky.calls - before <= 4
    assert isinstance(answers[0], NotFound)
    stored = (await store.query_spans(got.rollout_id)).items
    assert {span.span_id: span for span in stored} == {span.span_id: span for span in answers if isinstance(span, Span)}
    assert [span.sequence_id for span in stored] == list(range(1, 2 * MOST + 1))


async def test_a_lost_answer_to_many_changes_nothing(store: HttpStore, flaky: LosesAnswers) -> None:
    got = await claimed(store)
    flaky.lose, before = 2, flaky.calls
    answers = await asyncio.gather(*(store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(10)))
    assert flaky.calls == before + 3
    assert sorted(span.sequence_id for span in answers if span is not None) == list(range(1, 11))


async def test_a_caller_that_gives_up_takes_nobody_along(store: HttpStore) -> None:
    got = await claimed(store)
    adding = [asyncio.create_task(store.add_span(span_of(got.attempt, f"{n:x}"))) for n in range(5)]
    await asyncio.sleep(0)
    adding[2].cancel()
    answers = await asyncio.gather(*adding, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [False, False, True, False, False]


async def test_all_learn_that_the_server_is_gone(unused_tcp_port: int) -> None:
    store = HttpStore(f"http://127.0.0.1:{unused_tcp_port}", TOKEN, 0.0)
    calls = (store.update_attempt("ro", f"at-{n}", status="running") for n in range(3))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreError] * 3
    assert len({id(answer) for answer in answers}) == 3  # an error belongs to who gets it: raising writes to it
    await store.close()


@pytest.mark.parametrize(
    ("name", "call", "status", "said"),
    [
        ("dequeue_many_rollouts", {"timeout": 9.0}, 400, "may wait"),
        ("no_such", {}, 404, "no method 'no_such'"),
        ("add_span", {"spam": 1}, 400, "not a call of add_span"),
    ],
)
async def test_a_part_that_is_no_call_is_refused_alone(
    server: StoreServer, name: str, call: dict[str, object], status: int, said: str
) -> None:
    connection = Connection(server.add(MemoryStore()), TOKEN, 5.0)
    parts = [
        BatchPart(name, "1", msgspec.msgpack.encode(call)),
        BatchPart("enqueue_rollout", "2", methods()["enqueue_rollout"].encode_call({"n": 1})),
    ]
    async with asyncio.timeout(20):
        whole, body, _ = await connection.post(BATCH_PATH, msgspec.msgpack.encode(parts), "3")
    await connection.close()
    assert whole == 200
    answers = msgspec.msgpack.decode(body, type=list[BatchPartAnswer])
    assert answers[0].status == status and said in answers[0].body.decode()
    assert answers[1].status == 200


async def test_what_is_no_list_of_calls_is_refused(server: StoreServer) -> None:
    url = server.add(MemoryStore())
    for token, body, status in ((TOKEN, b"\x01", 400), ("wrong", b"\x90", 401)):
        connection = Connection(url, token, 5.0)
        assert (await connection.post(BATCH_PATH, body, "1"))[0] == status
        await connection.close()


async def test_answers_that_do_not_fit_the_calls_are_an_error() -> None:
    async def one_answer(path: str, body: bytes, request_id: str) -> ServerAnswer:
        return ServerAnswer(200, msgspec.msgpack.encode([BatchPartAnswer(200, b"\xc0")]), was_sent_again=False)

    together = RequestBatcher(one_answer)
    answers = await asyncio.gather(*(together.call("add_span", b"") for _ in range(2)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["the store answered 1 of 2 calls"] * 2


async def test_a_lone_call_goes_by_itself() -> None:
    paths: list[str] = []

    async def noted(path: str, body: bytes, request_id: str) -> ServerAnswer:
        paths.append(path)
        return ServerAnswer(200, b"\xc0", was_sent_again=False)

    together = RequestBatcher(noted)
    for _ in range(3):
        assert await together.call("add_span", b"") == (200, b"\xc0", False)
    assert paths == ["add_span"] * 3
