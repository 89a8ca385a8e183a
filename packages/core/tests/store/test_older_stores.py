"""Stores that version 42280a9 has written are read, and written to, as its own are.

`scripts/write_older_data.py` made the files in `older`, with a store of each kind and what that version read from it.
"""

import gzip
import json
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from redis import Redis

from leyden.core.data.resources import PromptTemplate
from leyden.core.data.rollout import Attempt
from leyden.core.data.run import PolicyVersion, StepMetrics
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.trainer.export.export import export_run
from older_data.fill import BEGAN, READ, call, spans_of
from older_data.records import records_of

pytestmark = pytest.mark.integration

OLDER = Path(__file__).with_name("older")
KINDS = ["sqlite", "postgresql", "redis"]


def unpacked(name: str) -> bytes:
    return gzip.decompress((OLDER / f"{name}.gz").read_bytes())


def restored_file(folder: Path) -> str:
    path = folder / "store.db"
    path.write_bytes(unpacked("sqlite.db"))
    return f"sqlite:///{path}"


def restored_database(server: PostgresServer) -> str:
    database = server.create()
    with server.connect(database) as connection:
        connection.execute(unpacked("postgresql.sql"))
    return server.uri_of(database)


def restored_keys(server: RedisServer) -> str:
    """Make the keys in a namespace of their own."""
    namespace = f"older-{uuid.uuid4()}"
    uri = server.uri(namespace)
    client: Any = Redis(unix_socket_path=uri.removeprefix("redis+unix://").partition("?")[0])
    for name, key, *values in msgspec.msgpack.decode(unpacked("redis.msgpack")):
        client.execute_command(name, key.replace(b"leyden:default:", f"leyden:{namespace}:".encode()), *values)
    client.close()
    return uri


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def uri(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "sqlite":
        return restored_file(tmp_path)
    if kind == "postgresql":
        return restored_database(request.getfixturevalue("postgres"))
    return restored_keys(request.getfixturevalue("redis"))


@pytest.fixture
def before(kind: str) -> dict[str, Any]:
    """What the older version read."""
    return json.loads(unpacked(f"{kind}.json"))


@pytest.fixture
async def store(uri: str) -> AsyncGenerator[LightningStore]:
    store = await open_store(uri, clock=lambda: READ)
    yield store
    await store.close()


DEFAULTS = {"engine": "f-string"}
"""New fields that are never empty: the engine of prompt templates."""


async def test_every_record_is_read_as_the_older_version_read_it(store: LightningStore, before: dict[str, Any]) -> None:
    found = await records_of(store)
    assert found.keys() == before.keys()
    for name, records in before.items():
        assert as_before(found[name], records) == records, name
    ids = [rollout.rollout_id for rollout in await store.query_rollouts()]
    assert len(ids) == before["counts"]["total_rollouts"]
    assert [rollout.rollout_id for rollout in await store.query_rollouts(queue="")] == ids
    assert (await store.query_rollouts(queue="run")).total == 0


def as_before(found: Any, before: Any) -> Any:
    """Records without fields that the older version did not have, which must be empty or have their default."""
    if isinstance(before, dict):
        new = {key: value for key, value in found.items() if key not in before}
        assert not any(value for key, value in new.items() if value != DEFAULTS.get(key)), new
        return {key: as_before(value, cast(Any, before)[key]) for key, value in found.items() if key in before}
    if isinstance(before, list) and len(found) == len(cast(Any, before)):
        return [as_before(one, other) for one, other in zip(found, cast("list[Any]", before), strict=True)]
    return found


async def test_the_queue_goes_on_where_it_was(store: LightningStore, before: dict[str, Any]) -> None:
    claims = await store.dequeue_many_rollouts(limit=9, worker_id="new", request_id="claim-1")
    assert [claim.rollout_id for claim in claims] == ["requeuing", "queued-1", "queued-2"]
    again = await store.dequeue_many_rollouts(limit=9, worker_id="new", request_id="claim-1")
    assert [claim.attempt for claim in again] == [claim.attempt for claim in claims]
    assert [claim.attempt.sequence_id for claim in claims] == [2, 1, 1]
    for claim in claims:
        spans = spans_of(claim.attempt)
        stored = [await store.add_span(span) for span in spans[:3]] + await store.add_many_spans(spans[2:])
        assert len([span for span in stored if span is not None]) == len(spans)
        await store.update_attempt(claim.rollout_id, "latest", status="succeeded")
    finished = await store.wait_for_rollouts(rollout_ids=[claim.rollout_id for claim in claims], timeout=0)
    assert {rollout.status for rollout in finished} == {"succeeded"}
    assert await store.dequeue_rollout("new") is None
    assert await store.dequeue_rollout("new", queue="run") is None
    found = await records_of(store)
    assert [span["sequence_id"] for span in found["spans"]["requeuing"]] == list(range(1, 12))
    expected = whole(spans_of(claims[1].attempt))
    assert whole((await store.query_spans("queued-1")).items) == expected
    changed = {claim.rollout_id for claim in claims}
    for table in ("attempts", "spans"):
        assert without(found[table], changed) == without(before[table], changed)
    (worker,) = [worker for worker in found["workers"] if worker["worker_id"] == "new"]
    assert worker["status"] == "idle"


def whole(spans: list[Any]) -> list[Any]:
    return [msgspec.structs.replace(span, sequence_id=0) for span in spans]


def without(records: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: found for name, found in records.items() if name not in names}


async def test_a_running_attempt_goes_on(store: LightningStore) -> None:
    """A number was given out, and the conversation of the earlier calls continues."""
    attempt = await running(store)
    before = (await store.query_spans("running")).items
    assert [span.sequence_id for span in before] == [1, 2, 3, 5]
    assert await store.add_span(call(attempt, 2)) is None, "it is stored already"
    stored = await store.add_span(call(attempt, 3))
    assert stored is not None and stored.sequence_id == 6
    assert await store.get_next_span_sequence_id("running", attempt.attempt_id) == 7
    assert (await store.query_spans("running")).items == [*before, stored]
    ended = await store.update_attempt("running", attempt.attempt_id, status="failed", metadata={"error": "none"})
    assert (ended.status, ended.worker_id) == ("failed", "w-5")
    worker = await store.get_worker_by_id("w-5")
    assert worker is not None and worker.status == "idle"


async def running(store: LightningStore) -> Attempt:
    attempt = await store.get_latest_attempt("running")
    assert attempt is not None and attempt.status == "running"
    return attempt


async def test_deadlines_that_were_set_are_kept(uri: str) -> None:
    store = await open_store(uri, clock=lambda: READ + 2500.0)
    assert (await running(store)).end_time is None
    await store.close()
    store = await open_store(uri, clock=lambda: BEGAN + 9000.0)
    (rollout,) = (await store.query_rollouts(rollout_ids=["running"])).items
    attempt = await store.get_latest_attempt("running")
    assert attempt is not None and (rollout.status, attempt.status) == ("failed", "timeout")
    await store.close()


async def test_resources_and_runs_go_on(store: LightningStore) -> None:
    updated = await store.update_resources("prompts", {"prompt": PromptTemplate(template="new")}, request_id="update-1")
    assert (updated.version, await store.get_latest_resources()) == (4, updated)
    first = await store.get_resources_by_id("prompts", 1)
    assert first is not None and first.resources == {"prompt": PromptTemplate(template="0: {question}")}
    assert await store.add_metrics("calculator-1", [StepMetrics(step=2, values={"reward": 1.0})]) == 1
    assert await store.add_metrics("calculator-1", [StepMetrics(step=3, values={"reward": 1.0})]) == 1
    await store.add_policy_versions([PolicyVersion(run_id="calculator-1", version=3, parent=2)])
    *_, second, third = (await store.query_metrics("calculator-1")).items
    assert (second.values, second.notes) == ({"reward": 1.0, "loss": -0.5}, {"alert": "naïve"})
    assert third.values == {"reward": 1.0}
    await store.rewind_run("calculator-1", 1)
    assert [one.step for one in await store.query_metrics("calculator-1")] == [0, 1]
    versions = await store.query_policy_versions(run_id="calculator-1", policy="policy")
    assert [one.version for one in versions] == [1]
    assert (await store.update_run("calculator-1", status="succeeded")).status == "succeeded"
    assert (await store.update_run("other", status="running")).status == "running"


async def test_an_older_store_is_exported(uri: str, before: dict[str, Any], tmp_path: Path) -> None:
    what = ("rollouts", "spans", "transitions", "runs", "metrics", "policy_versions")
    exported = await export_run(uri, tmp_path / "rows", format="jsonl", what=what)
    assert exported.rows["rollouts"] == before["counts"]["total_rollouts"]
    assert exported.rows["spans"] == before["counts"]["total_spans"]
    assert exported.rows["policy_versions"] == len(before["policy versions"])
    rows = [json.loads(line) for line in (tmp_path / "rows/transitions.jsonl").read_text().splitlines()]
    assert len(rows) == exported.rows["transitions"]
    of_succeeded = [row for row in rows if row["rollout_id"] == "succeeded"]
    assert [len(row["prompt_ids"]) for row in of_succeeded] == [200, 240, 280, 320]
    assert {row["reward"] for row in of_succeeded} == {0.5}
