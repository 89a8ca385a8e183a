"""What a worker's token opens: every method of a store, for what the worker has claimed and for what another has."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.data import semconv
from leyden.core.data.resources import PromptTemplate
from leyden.core.data.rollout import Attempt, AttemptedRollout, ClaimedRollout
from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.data.span import Attributes
from leyden.core.errors import StoreError
from leyden.core.store.base import LightningStore
from leyden.core.store.http.access import Access, WorkerCaller, machine_name, worker_token
from leyden.core.store.http.client import HttpStore
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.store.rpc import methods
from leyden.core.testing.factories import span
from leyden.core.testing.servers.store_server import ACCESS, TOKEN, StoreServer, accepts
from leyden.core.testing.store_contract.shared import (
    RETRY,
    attempt_now,
    counts_of,
    queue_length,
    rollout_now,
    span_of,
    taken,
)

OWN, OTHER = "worker-a-1", "worker-a-2"
MACHINE = ACCESS.machine_token("worker-a-")


class Client(HttpStore):
    """A store that also calls methods for which the client has others."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method as it is."""
        return await self._call(getattr(LightningStore, method), *arguments)


@dataclass(frozen=True)
class Served:
    """A store in which two workers of one machine have claimed an attempt each, and its server's URL."""

    behind: MemoryStore
    url: str
    own: Attempt
    other: Attempt


@pytest.fixture
async def served(server: StoreServer) -> AsyncGenerator[Served]:
    behind = MemoryStore()
    await behind.add_resources({"prompt": PromptTemplate(template="hello")})
    for _ in range(3):
        await behind.enqueue_rollout("task")
    own = taken(await behind.dequeue_rollout(OWN)).attempt
    other = taken(await behind.dequeue_rollout(OTHER)).attempt
    yield Served(behind, server.add(behind), own, other)
    await behind.close()


@pytest.fixture
async def store(served: Served) -> AsyncGenerator[Client]:
    """The store as the first worker sees it."""
    store = Client(served.url, worker_token(MACHINE, OWN), 0.5)
    yield store
    await store.close()


Call = Callable[[Client, Attempt, str], Awaitable[Any]]
"""A call about an attempt that the worker of this id has claimed."""
REWARD: Attributes = {semconv.REWARD_VALUE: 1.0}
ALLOWED: dict[str, Call] = {
    "add_span": lambda store, a, _: store.add_span(span_of(a)),
    "add_many_spans": lambda store, a, _: store.add_many_spans([span_of(a)]),
    "dequeue_rollout": lambda store, _, worker: store.call("dequeue_rollout", worker),
    "dequeue_many_rollouts": lambda store, _, worker: store.dequeue_many_rollouts(worker_id=worker),
    "find_attempt": lambda store, a, _: store.call("find_attempt", a.rollout_id, a.attempt_id),
    "get_next_span_sequence_id": lambda store, a, _: store.get_next_span_sequence_id(a.rollout_id, a.attempt_id),
    "get_many_span_sequence_ids": lambda store, a, _: store.get_many_span_sequence_ids([(a.rollout_id, a.attempt_id)]),
    "get_rollout_by_id": lambda store, a, _: store.get_rollout_by_id(a.rollout_id),
    "query_spans": lambda store, a, _: store.query_spans(a.rollout_id, a.attempt_id),
    "update_attempt": lambda store, a, _: store.update_attempt(
        a.rollout_id, a.attempt_id, status="succeeded", last_heartbeat_time=1.0, metadata={"a": 1}
    ),
    "update_rollout": lambda store, a, _: store.update_rollout(a.rollout_id, status="requeuing"),
    "update_worker": lambda store, _, worker: store.update_worker(worker, {"running": 1}),
}
"""What is a worker's to call for its own attempts and in its own name; refused for another's."""
FILTERED: dict[str, Call] = {
    "query_attempts": lambda store, a, _: store.query_attempts(a.rollout_id),
    "query_rollouts": lambda store, a, _: store.query_rollouts(rollout_id_in=[a.rollout_id]),
}
"""What a worker may ask; the answer holds what it has claimed, and is empty for another's."""
OPEN: dict[str, Call] = {
    "get_latest_resources": lambda store, _, __: store.get_latest_resources(),
    "get_resources_by_id": lambda store, _, __: store.get_resources_by_id("rs"),
}
"""What rollouts run with, which is nobody's in particular."""
REFUSED: dict[str, Call] = {
    "add_metrics": lambda store, _, __: store.add_metrics("r", [StepMetrics(step=1, values={})]),
    "add_policy_versions": lambda store, _, __: store.add_policy_versions([PolicyVersion(run_id="r", version=1)]),
    "add_resources": lambda store, _, __: store.add_resources({}),
    "add_run": lambda store, _, __: store.add_run(Run(run_id="r", name="r")),
    "drop_spans": lambda store, a, _: store.drop_spans(a.rollout_id),
    "enqueue_many_rollouts": lambda store, _, __: store.enqueue_many_rollouts([]),
    "enqueue_rollout": lambda store, _, __: store.call("enqueue_rollout", "task"),
    "get_latest_attempt": lambda store, a, _: store.get_latest_attempt(a.rollout_id),
    "get_run_by_id": lambda store, _, __: store.get_run_by_id("r"),
    "get_worker_by_id": lambda store, _, worker: store.get_worker_by_id(worker),
    "query_metrics": lambda store, _, __: store.query_metrics("r"),
    "query_policy_versions": lambda store, _, __: store.query_policy_versions(),
    "query_resources": lambda store, _, __: store.query_resources(),
    "query_runs": lambda store, _, __: store.query_runs(),
    "query_workers": lambda store, _, __: store.query_workers(),
    "rewind_run": lambda store, _, __: store.rewind_run("r", 1),
    "start_attempt": lambda store, a, worker: store.start_attempt(a.rollout_id, worker),
    "start_rollout": lambda store, _, worker: store.start_rollout("task", worker_id=worker),
    "statistics": lambda store, _, __: store.statistics(),
    "update_policy_version": lambda store, _, __: store.update_policy_version("r", 1, note="n"),
    "update_resources": lambda store, _, __: store.update_resources("rs", {}),
    "update_run": lambda store, _, __: store.update_run("r", name="n"),
    "wait_for_rollouts": lambda store, a, _: store.wait_for_rollouts(rollout_ids=[a.rollout_id], timeout=0),
}
"""What is no worker's to call, whatever it is about."""


def test_every_method_of_a_store_is_in_one_of_the_tables() -> None:
    tables = (ALLOWED, FILTERED, OPEN, REFUSED)
    assert sorted(name for table in tables for name in table) == sorted(methods())


@pytest.mark.parametrize("method", [*ALLOWED, *FILTERED, *OPEN])
async def test_a_worker_does_what_a_runner_does(method: str, served: Served, store: Client) -> None:
    call = {**ALLOWED, **FILTERED, **OPEN}[method]
    answer = await call(store, served.own, OWN)
    if method in FILTERED:
        assert len(answer.items) == answer.total == 1


@pytest.mark.parametrize("method", ALLOWED)
async def test_nothing_of_another_worker_is_opened(method: str, served: Served, store: Client) -> None:
    before = await counts_of(served.behind)
    with pytest.raises(
        StoreError, match=r"not claimed by worker worker-a-1|the token is only for worker worker-a-1"
    ) as said:
        await ALLOWED[method](store, served.other, OTHER)
    assert "\n" not in str(said.value)
    assert await counts_of(served.behind) == before
    assert (await attempt_now(served.behind, served.other)).status == "preparing"


@pytest.mark.parametrize("method", FILTERED)
async def test_queries_leave_out_what_another_worker_has_claimed(method: str, served: Served, store: Client) -> None:
    answer = await FILTERED[method](store, served.other, OTHER)
    assert (answer.items, answer.total) == ([], 0)


@pytest.mark.parametrize("method", REFUSED)
async def test_a_worker_is_refused_everything_else(method: str, served: Served, store: Client) -> None:
    before = await counts_of(served.behind)
    with pytest.raises(StoreError, match=f"a worker's token does not allow {method}, only add_many_spans") as said:
        await REFUSED[method](store, served.own, OWN)
    assert "\n" not in str(said.value)
    assert await counts_of(served.behind) == before


ARGUMENTS: dict[str, tuple[Call, str]] = {
    "a claim in nobody's name": (lambda store, a, _: store.dequeue_many_rollouts(), "worker_id is None"),
    "a span of an own attempt under another's rollout": (
        lambda store, a, _: store.add_span(span("x", rollout_id="ro", attempt_id=a.attempt_id)),
        "not claimed by",
    ),
    "a reward among own spans": (
        lambda store, a, other: store.add_many_spans(
            [span_of(a), span(semconv.REWARD, REWARD, rollout_id=other, attempt_id="at")]
        ),
        "not claimed by",
    ),
    "all spans of a rollout": (lambda store, a, _: store.query_spans(a.rollout_id), "query_spans needs an attempt"),
    "whatever is latest": (lambda store, a, _: store.query_spans(a.rollout_id, "latest"), "not claimed by"),
    "latest, to be changed": (
        lambda store, a, _: store.update_attempt(a.rollout_id, "latest", status="failed"),
        "not claimed by",
    ),
    "another worker for its attempt": (
        lambda store, a, _: store.update_attempt(a.rollout_id, a.attempt_id, worker_id=OTHER),
        "may not change worker_id",
    ),
    "the end of a rollout": (
        lambda store, a, _: store.update_rollout(a.rollout_id, status="cancelled"),
        "may only put a rollout back",
    ),
    "another task for a rollout": (
        lambda store, a, _: store.update_rollout(a.rollout_id, input="easier", status="requeuing"),
        "may only put a rollout back",
    ),
    "all rollouts": (lambda store, a, _: store.query_rollouts(), "only by rollout_id_in or status_in"),
    "rollouts by name": (
        lambda store, a, _: store.query_rollouts(status_in=["running"], rollout_id_contains="ro"),
        "only by rollout_id_in or status_in",
    ),
}


@pytest.mark.parametrize("what", ARGUMENTS)
async def test_arguments_that_are_not_a_workers(what: str, served: Served, store: Client) -> None:
    call, said = ARGUMENTS[what]
    before = await counts_of(served.behind)
    with pytest.raises(StoreError, match=said):
        await call(store, served.own, served.other.rollout_id)
    assert await counts_of(served.behind) == before


async def test_rollouts_by_status_are_the_workers_own(served: Served, store: Client) -> None:
    found = await store.query_rollouts(status_in=["preparing", "running"])
    assert [rollout.rollout_id for rollout in found] == [served.own.rollout_id]


async def test_a_rewards_span_of_an_own_attempt_is_stored(served: Served, store: Client) -> None:
    ids = {"rollout_id": served.own.rollout_id, "attempt_id": served.own.attempt_id, "sequence_id": 0}
    assert await store.add_span(span(semconv.REWARD, REWARD, **ids)) is not None


async def test_a_rollout_that_another_took_over_is_still_seen_and_no_longer_changed(
    served: Served, store: Client
) -> None:
    rollout = await served.behind.enqueue_rollout("again", config=RETRY)
    while (own := taken(await served.behind.dequeue_rollout(OWN))).rollout_id != rollout.rollout_id:
        pass
    await served.behind.update_attempt(own.rollout_id, own.attempt.attempt_id, status="timeout")
    while (after := taken(await served.behind.dequeue_rollout(OTHER))).rollout_id != rollout.rollout_id:
        pass
    (seen,) = await store.query_rollouts(rollout_id_in=[rollout.rollout_id])
    assert isinstance(seen, AttemptedRollout)
    assert seen.attempt.attempt_id == after.attempt.attempt_id
    assert await store.get_rollout_by_id(rollout.rollout_id) == seen
    own_ones = await store.query_attempts(rollout.rollout_id)
    assert [attempt.attempt_id for attempt in own_ones] == [own.attempt.attempt_id]
    with pytest.raises(StoreError, match="not claimed by"):
        await store.update_rollout(rollout.rollout_id, status="requeuing")
    assert (await rollout_now(served.behind, rollout)).status == "preparing"


async def test_a_claim_under_another_workers_request_id_is_not_handed_out(served: Served, store: Client) -> None:
    other = HttpStore(served.url, worker_token(MACHINE, OTHER), 0.5)
    (claim,) = await other.dequeue_many_rollouts(worker_id=OTHER, request_id="guessed")
    with pytest.raises(StoreError, match="this claim belongs to another worker"):
        await store.dequeue_many_rollouts(worker_id=OWN, request_id="guessed")
    assert (await rollout_now(served.behind, claim)).attempt.worker_id == OTHER
    await other.close()


async def test_a_machine_speaks_for_each_of_its_workers_and_for_no_other(served: Served) -> None:
    machine = HttpStore(served.url, MACHINE, 0.5)
    for attempt in (served.own, served.other):
        await machine.update_attempt(attempt.rollout_id, attempt.attempt_id, status="unresponsive")
    await machine.close()
    stranger = HttpStore(served.url, ACCESS.machine_token("worker-b-"), 0.5)
    with pytest.raises(StoreError, match="not claimed by the machine of workers worker-b-"):
        await stranger.update_attempt(served.own.rollout_id, served.own.attempt_id, status="succeeded")
    with pytest.raises(StoreError, match="the token is only for the machine of workers worker-b-"):
        await stranger.dequeue_many_rollouts(worker_id=OWN)
    assert await queue_length(served.behind) == 1
    await stranger.close()


async def test_claims_bring_their_attempts_tokens_where_the_server_makes_them(
    served: Served, server: StoreServer
) -> None:
    app = store_app(
        served.behind, authorize=accepts, agents=ACCESS.holder, attempt_token=lambda rollout, attempt: f"t-{attempt}"
    )
    url = server.add_app(app)
    for token in (worker_token(MACHINE, OWN), TOKEN):
        await served.behind.enqueue_rollout("task")
        store = HttpStore(url, token, 0.5)
        (claim,) = await store.dequeue_many_rollouts(worker_id=OWN)
        assert isinstance(claim, ClaimedRollout)
        assert claim.token == f"t-{claim.attempt.attempt_id}"
        assert claim.token not in repr(claim)
        seen = await store.get_rollout_by_id(claim.rollout_id)
        assert type(seen) is AttemptedRollout
        assert seen.attempt == claim.attempt
        await store.close()


async def test_spans_by_otlp_are_those_of_own_attempts(served: Served) -> None:
    request: Any = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for number, attempt in enumerate((served.own, served.other), start=1):
        one = scoped.spans.add(trace_id=b"t" * 16, span_id=number.to_bytes(8, "big"), name="x")
        one.start_time_unix_nano, one.end_time_unix_nano = 1, 2
        for name, value in ((semconv.ROLLOUT_ID, attempt.rollout_id), (semconv.ATTEMPT_ID, attempt.attempt_id)):
            one.attributes.add(key=name).value.string_value = value
    headers = {
        "authorization": f"Bearer {worker_token(MACHINE, OWN)}",
        "content-type": "application/x-protobuf",
    }
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{served.url}/v1/traces", data=request.SerializeToString()) as answer,
    ):
        assert answer.status == 200
        assert b"is not claimed by worker worker-a-1" in await answer.read()
    assert len(await served.behind.query_spans(served.own.rollout_id)) == 1
    assert len(await served.behind.query_spans(served.other.rollout_id)) == 0


# --- Tokens


def test_tokens_say_whose_they_are() -> None:
    assert ACCESS.holder(MACHINE) == WorkerCaller("worker-a-", is_machine=True)
    assert ACCESS.holder(worker_token(MACHINE, OWN)) == WorkerCaller(OWN)
    assert machine_name(MACHINE) == "worker-a-"
    for other in (TOKEN, worker_token(MACHINE, OWN), ACCESS.agent_token("ro", "at"), "workers.", "workers...", ""):
        assert machine_name(other) is None
        assert worker_token(other, OWN) == other


def test_a_machine_has_a_name_and_workers_that_bear_it() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        ACCESS.machine_token("")
    with pytest.raises(ValueError, match="does not belong to this machine"):
        worker_token(MACHINE, "worker-b-1")


def test_nobody_makes_another_workers_token_of_his_own() -> None:
    own = worker_token(MACHINE, OWN)
    scope, name, rest, signature = own.split(".")
    renamed = worker_token(Access("another").machine_token("worker-a-"), OTHER).split(".")[2]
    made_up = [
        f"{scope}.{name}.{renamed}.{signature}",
        f"{scope}.{name}..{signature}",
        f"workers.{name}..{signature}",
        f"workers.{name}.{rest}.{signature}",
        f"agent.{name}.{rest}.{signature}",
        f"{scope}..{rest}.{signature}",
        worker_token(f"workers.{name}..{signature}", OTHER),
        worker_token(Access("another").machine_token("worker-a-"), OWN),
        f"worker.{name}",
        "worker.ü.ü.ü",
    ]
    assert [ACCESS.holder(token) for token in made_up] == [None] * len(made_up)


async def test_a_store_that_fails_is_no_error_of_the_server(
    served: Served, store: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(*_: str) -> None:
        raise StoreError("connection refused")

    monkeypatch.setattr(served.behind, "find_attempt", gone)
    for call in (
        store.add_span(span_of(served.own)),
        store.update_attempt(served.own.rollout_id, served.own.attempt_id, last_heartbeat_time=1.0),
        store.query_spans(served.own.rollout_id, served.own.attempt_id),
    ):
        with pytest.raises(StoreError, match=r"^connection refused$"):
            await call
    assert caplog.text == ""
