"""What an agent's token opens, and what it does not."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.rollout import Attempt
from leyden.core.data.run import Run
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.http import access
from leyden.core.store.http.access import Access, AttemptCaller
from leyden.core.store.http.client import HttpStore
from leyden.core.store.http.idempotency import IdempotentCalls
from leyden.core.store.http.otlp.reading import ReadRequest
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.store.rpc import BatchPartAnswer
from leyden.core.testing.factories import span
from leyden.core.testing.servers.store_server import ACCESS, TOKEN, LosesAnswers, StoreServer, accepts
from leyden.core.testing.store_contract.shared import RETRY, attempt_now, claimed, counts_of, rollout_now, span_of


@dataclass(frozen=True)
class Served:
    """A store with two attempts, and its server's URL."""

    behind: MemoryStore
    url: str
    own: Attempt
    other: Attempt


@pytest.fixture
async def served(server: StoreServer) -> AsyncGenerator[Served]:
    behind = MemoryStore()
    own, other = (await claimed(behind)).attempt, (await claimed(behind)).attempt
    yield Served(behind, server.add(behind), own, other)
    await behind.close()


@pytest.fixture
async def store(served: Served) -> AsyncGenerator[HttpStore]:
    """The store as the agent of the first attempt sees it."""
    store = HttpStore(served.url, ACCESS.agent_token(served.own.rollout_id, served.own.attempt_id), 0.5)
    yield store
    await store.close()


@pytest.mark.integration
async def test_an_agent_writes_spans_and_the_status_of_its_attempt(served: Served, store: HttpStore) -> None:
    ids = (served.own.rollout_id, served.own.attempt_id)
    assert await store.get_next_span_sequence_id(*ids) == 1
    assert await store.get_many_span_sequence_ids([ids]) == [2]
    stored = await store.add_span(span_of(served.own, "1"))
    assert stored is not None and stored.sequence_id == 3
    assert [s.sequence_id for s in await store.add_many_spans([span_of(served.own, "2")])] == [4]
    assert len(await store.query_spans(*ids)) == 2
    await store.update_attempt(*ids, status="succeeded")
    assert (await attempt_now(served.behind, served.own)).status == "succeeded"


CALLS: dict[str, tuple[Callable[[HttpStore, Served], Awaitable[object]], str]] = {
    "another's span": (lambda store, s: store.add_span(span_of(s.other)), "is only for attempt"),
    "one of many": (lambda store, s: store.add_many_spans([span_of(s.own), span_of(s.other)]), "is only for attempt"),
    "another's spans": (
        lambda store, s: store.query_spans(s.other.rollout_id, s.other.attempt_id),
        "is only for attempt",
    ),
    "the rollout's spans": (lambda store, s: store.query_spans(s.own.rollout_id), "is only for attempt"),
    "another's number": (
        lambda store, s: store.get_next_span_sequence_id(s.other.rollout_id, s.other.attempt_id),
        "is only for attempt",
    ),
    "numbers": (
        lambda store, s: store.get_many_span_sequence_ids([(s.other.rollout_id, s.other.attempt_id)]),
        "is only for attempt",
    ),
    "another's status": (
        lambda store, s: store.update_attempt(s.other.rollout_id, s.other.attempt_id, status="failed"),
        "is only for attempt",
    ),
    "whatever is latest": (
        lambda store, s: store.update_attempt(s.own.rollout_id, "latest", status="failed"),
        "is only for attempt",
    ),
    "a worker": (
        lambda store, s: store.update_attempt(s.own.rollout_id, s.own.attempt_id, worker_id="w"),
        "may not change worker_id",
    ),
    "a reward": (
        lambda store, s: store.add_span(
            span(semconv.REWARD, rollout_id=s.own.rollout_id, attempt_id=s.own.attempt_id, sequence_id=0)
        ),
        "holds a reward",
    ),
    "a reward by another name": (
        lambda store, s: store.add_many_spans(
            [
                span(
                    "x",
                    {semconv.REWARD_DIMENSION + "style": 1.0},
                    rollout_id=s.own.rollout_id,
                    attempt_id=s.own.attempt_id,
                )
            ]
        ),
        "holds a reward",
    ),
    "work": (lambda store, s: store.dequeue_rollout(), "does not allow dequeue_many_rollouts"),
    "more work": (lambda store, s: store.enqueue_rollout(1), "does not allow enqueue_many_rollouts"),
    "resources": (lambda store, s: store.get_latest_resources(), "does not allow get_latest_resources"),
    "a run": (lambda store, s: store.add_run(Run(run_id="r", name="r")), "does not allow add_run"),
    "metrics": (lambda store, s: store.query_metrics("r"), "does not allow query_metrics"),
    "counts": (lambda store, s: store.statistics(), "does not allow statistics"),
}


@pytest.mark.parametrize("what", CALLS)
async def test_an_agent_is_refused(what: str, served: Served, store: HttpStore) -> None:
    call, said = CALLS[what]
    before = await counts_of(served.behind)
    with pytest.raises(StoreError, match=said) as caught:
        await call(store, served)
    assert "\n" not in str(caught.value)
    assert await counts_of(served.behind) == before
    assert (await attempt_now(served.behind, served.other)).status == "preparing"


async def test_calls_that_travel_together_are_checked_one_by_one(served: Served, store: HttpStore) -> None:
    spans = [span_of(served.own, "1"), span_of(served.own, "2"), span_of(served.other, "3")]
    answers = await asyncio.gather(*map(store.add_span, spans), return_exceptions=True)
    assert [isinstance(answer, StoreError) for answer in answers] == [False, False, True]
    assert (await served.behind.statistics())["total_spans"] == 2


async def test_a_reward_may_be_granted(served: Served) -> None:
    store = HttpStore(served.url, ACCESS.agent_token(served.own.rollout_id, served.own.attempt_id, rewards=True))
    ids = {"rollout_id": served.own.rollout_id, "attempt_id": served.own.attempt_id, "sequence_id": 0}
    assert await store.add_span(span(semconv.REWARD, {semconv.REWARD_VALUE: 1.0}, **ids)) is not None
    await store.close()


async def test_an_attempt_that_has_ended_opens_nothing(served: Served, store: HttpStore) -> None:
    await served.behind.update_attempt(served.own.rollout_id, served.own.attempt_id, status="failed")
    with pytest.raises(StoreError, match="has ended \\(failed\\)"):
        await store.add_span(span_of(served.own))
    with pytest.raises(StoreError, match="has ended"):
        await store.query_spans(served.own.rollout_id, served.own.attempt_id)


async def test_an_attempt_that_failed_opens_nothing_while_its_rollout_waits_for_the_next(served: Served) -> None:
    failed = (await claimed(served.behind, RETRY)).attempt
    await served.behind.update_attempt(failed.rollout_id, failed.attempt_id, status="failed")
    assert (
        await rollout_now(served.behind, await served.behind.start_attempt(failed.rollout_id))
    ).status == "preparing"
    store = HttpStore(served.url, ACCESS.agent_token(failed.rollout_id, failed.attempt_id))
    with pytest.raises(StoreError, match=f"attempt {failed.attempt_id} has ended \\(failed\\)"):
        await store.add_span(span_of(failed))
    await store.close()


async def test_a_cancelled_rollout_opens_nothing(served: Served, store: HttpStore) -> None:
    await served.behind.update_rollout(served.own.rollout_id, status="cancelled")
    with pytest.raises(StoreError, match="has ended \\(cancelled\\)"):
        await store.add_span(span_of(served.own))


async def test_a_lost_answer_to_the_last_word_of_an_agent_is_given_again(served: Served, server: StoreServer) -> None:
    flaky = LosesAnswers(store_app(served.behind, authorize=accepts, agents=ACCESS.agent))
    token = ACCESS.agent_token(served.own.rollout_id, served.own.attempt_id)
    store = HttpStore(server.add_app(flaky), token, 5.0)
    flaky.lose = 1
    ended = await store.update_attempt(served.own.rollout_id, served.own.attempt_id, status="succeeded")
    assert (ended.status, flaky.calls) == ("succeeded", 2)
    await store.close()


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (Access("another").agent_token("ro", "at"), "valid bearer token"),
        (mint(b"k" * 32, "ro", "at"), "valid bearer token"),
        ("agent-reward." + ACCESS.agent_token("ro", "at").partition(".")[2], "valid bearer token"),
        ("agent.", "valid bearer token"),
        (ACCESS.agent_token("ro", "at"), "there is no attempt at of rollout ro"),
    ],
)
async def test_tokens_that_open_nothing(served: Served, token: str, said: str) -> None:
    store = HttpStore(served.url, token, 0.5)
    with pytest.raises(StoreError, match=said):
        await store.add_many_spans([])
    await store.close()


async def test_a_scope_of_another_version_is_named(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(access, "SCOPES", {"guest": False})
        token = ACCESS.agent_token("ro", "at")
    store = HttpStore(served.url, token, 0.5)
    with pytest.raises(StoreError, match="unknown token scope 'guest'; use one of agent, agent-reward"):
        await store.add_many_spans([])
    await store.close()


def test_a_token_says_whose_it_is_and_must_fit_a_header() -> None:
    assert ACCESS.agent(ACCESS.agent_token("ro-1", "at-1")) == AttemptCaller("ro-1", "at-1")
    assert ACCESS.agent(TOKEN) is None
    for token in ("", "two words", "schlüssel"):
        with pytest.raises(UsageError, match="printable ASCII"):
            Access(token)


def test_rewards_by_otlp_are_refused_one_by_one() -> None:
    taken = ReadRequest([span("x"), span(semconv.REWARD), span("y", attempt_id="other")])
    agent = AttemptCaller("ro", "at")
    taken.keep(lambda one: access.span_problem(agent, one))
    assert ([one.name for one in taken.spans], taken.refused) == (["x"], 2)


async def test_answers_are_remembered_up_to_a_size() -> None:
    once, runs = IdempotentCalls(most=4000), list[int]()

    async def call(name: int) -> BatchPartAnswer:
        async def work() -> BatchPartAnswer:
            runs.append(name)
            return BatchPartAnswer(200, bytes(1000))

        answer = await once.answer(name, work)
        assert answer is not None
        return answer

    for name in (1, 2, 3, 3, 2):
        await call(name)
    assert runs == [1, 2, 3]
    await call(1)
    assert runs == [1, 2, 3, 1]
