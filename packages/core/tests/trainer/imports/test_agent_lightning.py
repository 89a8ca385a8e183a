"""`leyden import agent-lightning`, on answers of a real server of 0.3 (see scripts/record_agent_lightning.py)."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leyden.core.agent_lightning.emitter import find_final_reward
from leyden.core.cli.main import run as cli
from leyden.core.data import semconv
from leyden.core.data.reasons import UPSTREAM
from leyden.core.data.resources import LLM, PromptTemplate
from leyden.core.data.rollout import Attempt, AttemptedRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import LeydenError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.trainer.imports import agent_lightning_server
from leyden.core.trainer.imports.agent_lightning import QUEUE, Imported, import_agent_lightning
from leyden.core.trainer.rollouts.offline import read_store
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

pytestmark = pytest.mark.integration

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("agent_lightning_0_3.json").read_text())["answers"]
BY_TASK = {rollout["input"]["question"]: rollout for rollout in ANSWERS["rollouts"]}


class RecordedServer:
    """Sends what a real server sent, in pages. `fails_at` is the number of a request that it fails to answer."""

    def __init__(self) -> None:
        self.answers, self.fails_at, self.requests = json.loads(json.dumps(ANSWERS)), -1, 0
        self.app = Starlette(routes=[Route("/v1/agl/{path:path}", self._answer)])

    async def _answer(self, request: Request) -> Response:
        self.requests += 1
        if self.requests == self.fails_at:
            return Response("the server is stopped", 503)
        path, query = request.path_params["path"], request.query_params
        if path == "health":
            return JSONResponse({"status": "ok"})
        items = self.answers[f"spans of {query['attempt_id']}" if path == "spans" else path]
        limit, offset = int(query["limit"]), int(query["offset"])
        page = items[offset : offset + limit]
        return JSONResponse({"items": page, "limit": limit, "offset": offset, "total": len(items)})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> RecordedServer:
    monkeypatch.setattr(agent_lightning_server, "PAGE", 3)
    monkeypatch.setattr(agent_lightning_server, "SPANS", 2)
    monkeypatch.setattr(agent_lightning_server, "TRIES", 1)
    return RecordedServer()


@pytest.fixture
def url(server: RecordedServer) -> Generator[str]:
    with StoreServer() as serving:
        yield serving.add_app(server.app)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'imported.db'}"


def ignore(done: int, total: int) -> None:
    """Show no progress."""


@pytest.fixture
async def store(url: str, uri: str) -> AsyncGenerator[LightningStore]:
    """The store after an import."""
    await import_agent_lightning(url, uri, ignore)
    opened = await open_store(uri, clock=lambda: 0.0)
    yield opened
    await opened.close()


async def found(store: LightningStore, task: str) -> Rollout:
    rollout = await store.get_rollout_by_id(BY_TASK[task]["rollout_id"])
    assert rollout is not None
    return rollout


async def spans_of(store: LightningStore, task: str) -> list[Span]:
    return (await store.query_spans(BY_TASK[task]["rollout_id"])).items


async def test_rollouts_and_attempts_are_as_they_were(store: LightningStore) -> None:
    rollouts = (await store.query_rollouts()).items
    assert [rollout.rollout_id for rollout in rollouts] == [given["rollout_id"] for given in ANSWERS["rollouts"]]
    for rollout, given in zip(rollouts, ANSWERS["rollouts"], strict=True):
        assert (rollout.input, rollout.mode, rollout.status) == (given["input"], given["mode"], given["status"])
        assert (rollout.start_time, rollout.resources_id) == (given["start_time"], given["resources_id"])
        assert rollout.end_time == pytest.approx(given["end_time"], abs=1.0)
        assert (given["metadata"] or {}).items() <= rollout.metadata.items()
        assert list(rollout.config.retry_condition) == given["config"]["retry_condition"]
        attempts: list[Attempt] = (await store.query_attempts(rollout.rollout_id)).items
        sent = ANSWERS[f"rollouts/{rollout.rollout_id}/attempts"]
        assert len(attempts) == len(sent)
        for attempt, one in zip(attempts, sent, strict=True):
            assert (attempt.sequence_id, attempt.status) == (one["sequence_id"], one["status"])
            assert (attempt.worker_id, attempt.start_time) == (one["worker_id"], one["start_time"])
            assert attempt.last_heartbeat_time == one["last_heartbeat_time"]
            assert attempt.metadata["agent_lightning"]["attempt_id"] == one["attempt_id"]


async def test_spans_keep_their_numbers_ids_and_attributes(store: LightningStore) -> None:
    seen = 0
    for given in ANSWERS["rollouts"]:
        for attempt in (await store.query_attempts(given["rollout_id"])).items:
            spans = (await store.query_spans(given["rollout_id"], attempt.attempt_id)).items
            sent = ANSWERS[f"spans of {attempt.metadata['agent_lightning']['attempt_id']}"]
            for span, one in zip(spans, sent, strict=True):
                seen += 1
                assert (span.sequence_id, span.trace_id) == (one["sequence_id"], one["trace_id"])
                assert span.span_id == one["span_id"] or span.attributes["agentlightning.span.id"] == one["span_id"]
                assert (span.start_time, span.end_time) == (one["start_time"], one["end_time"])
                kept = {name: value for name, value in one["attributes"].items() if name not in semconv.CALL_RECORD}
                assert kept.items() <= span.attributes.items()
                assert one["resource"]["attributes"].items() <= span.resource.items()
                assert span.status.code == one["status"]["status_code"].lower()
                assert span.name == one["name"] or span.attributes["agentlightning.span.name"] == one["name"]
    assert seen == sum(len(items) for path, items in ANSWERS.items() if path.startswith("spans of"))


async def test_events_links_and_what_only_opentelemetry_has_are_kept(store: LightningStore) -> None:
    odd = (await spans_of(store, "called"))[3]
    assert [(event.name, event.time, event.attributes) for event in odd.events] == [("seen", 1_760_000_003.0, {"n": 1})]
    assert [(link.trace_id, link.span_id) for link in odd.links] == [(f"{1:032x}", f"{1:016x}")]
    assert odd.attributes["agentlightning.trace_state"] == '{"a":"b"}'
    assert odd.attributes["agentlightning.resource.schema_url"] == "https://opentelemetry.io/schemas/1.0"


async def test_rewards_are_read_as_rewards(store: LightningStore) -> None:
    assert find_final_reward(await spans_of(store, "ran")) == 0.5
    assert find_final_reward(await spans_of(store, "called")) == 0.25
    (reward,) = [span for span in await spans_of(store, "ran") if span.name == semconv.REWARD]
    assert reward.attributes["leyden.reward.dimension.short"] == 1.0


async def test_resources_are_there_without_keys(store: LightningStore) -> None:
    first = await store.get_resources_by_id("first")
    assert first is not None
    llm = LLM(endpoint="http://127.0.0.1:9/v1", model="m", sampling_parameters={"top_p": 0.9})
    assert first.resources == {"main_llm": llm, "proxy": LLM(endpoint="http://127.0.0.1:9/v1", model="m")}
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources == {"prompt_template": PromptTemplate(template="Please answer: {question}")}


async def test_no_worker_of_the_store_gets_what_still_waited(store: LightningStore) -> None:
    assert await store.dequeue_rollout(worker_id="w") is None
    claimed = await store.dequeue_many_rollouts(limit=9, worker_id="w", queue=QUEUE)
    assert {rollout.input["question"] for rollout in claimed} == {"again", "waits"}


async def test_nothing_of_it_is_trained_as_the_policys_own(store: LightningStore) -> None:
    for task in BY_TASK:
        rollout = await found(store, task)
        if isinstance(rollout, AttemptedRollout):
            spans = await spans_of(store, task)
            assert assemble(rollout, rollout.attempt, spans, Selector()).transitions == ()
            assert not {semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.POLICY_VERSION, semconv.CALL_ID} & {
                name for span in spans for name in span.attributes
            }


async def test_calls_with_messages_can_be_imitated_each_once(url: str, uri: str) -> None:
    await import_agent_lightning(url, uri, ignore)
    stored = await read_store(StoreLocation(uri), ByteCodec(), Selector())
    calls = [call for group in stored.groups for one in group.trajectories for call in one.transitions]
    # both of "called" (the proxy's copy and the forged one are none), and one of the last attempt of "retried"
    assert len(calls) == 3
    assert all(call.retokenised and len(call.logprobs) == 0 for call in calls)
    assert dict(stored.retokenised) == {UPSTREAM: 3}
    rewards = [one.reward for group in stored.groups for one in group.trajectories]
    assert sorted(reward for reward in rewards if reward is not None) == [0.25, 0.5]


async def test_messages_and_tools_are_those_of_chat_completions(store: LightningStore) -> None:
    asked, answered, *_ = await spans_of(store, "called")
    arguments = '{"text": "2 + 3"}'
    request = {"id": "call_1", "type": "function", "function": {"name": "calculate", "arguments": arguments}}
    (answer,) = json.loads(str(asked.attributes[semconv.OUTPUT_MESSAGES]))
    assert answer == {"role": "assistant", "content": "", "tool_calls": [request]}
    (tool,) = json.loads(str(asked.attributes[semconv.TOOL_DEFINITIONS]))
    assert tool["function"]["parameters"]["properties"] == {"text": {"type": "string"}}
    messages = json.loads(str(answered.attributes[semconv.INPUT_MESSAGES]))
    assert messages[2]["tool_calls"] == [request]
    assert messages[3] == {"role": "tool", "content": "5", "tool_call_id": "call_1"}


async def snapshot(uri: str) -> list[Any]:
    """Everything in the store that an import writes, in order."""
    store = await open_store(uri, clock=lambda: 0.0)
    try:
        rollouts = (await store.query_rollouts()).items
        inside = [
            ((await store.query_attempts(one.rollout_id)).items, (await store.query_spans(one.rollout_id)).items)
            for one in rollouts
        ]
        return [rollouts, inside, [one.resources for one in await store.query_resources()]]
    finally:
        await store.close()


async def test_an_import_that_is_interrupted_anywhere_is_completed_by_the_next(
    server: RecordedServer, url: str, tmp_path: Path
) -> None:
    whole = f"sqlite:///{tmp_path / 'whole.db'}"
    await import_agent_lightning(url, whole, ignore)
    requests, server.requests = server.requests, 0
    expected = await snapshot(whole)
    for fails_at in range(2, requests + 1, 3):
        uri = f"sqlite:///{tmp_path / f'interrupted-{fails_at}.db'}"
        server.fails_at, server.requests = fails_at, 0
        with pytest.raises(LeydenError, match="run the command again to continue"):
            await import_agent_lightning(url, uri, ignore)
        server.fails_at = -1
        await import_agent_lightning(url, uri, ignore)
        assert await snapshot(uri) == expected
    again = await import_agent_lightning(url, whole, ignore)
    assert (again.rollouts, again.attempts, again.spans, again.resources, again.there_already) == (0, 0, 0, 0, 5)
    assert await snapshot(whole) == expected


async def test_a_rollout_that_has_ended_meanwhile_is_completed(server: RecordedServer, url: str, uri: str) -> None:
    first = await import_agent_lightning(url, uri, ignore)
    assert first.unfinished == 3
    (running,) = [one for one in server.answers["rollouts"] if one["status"] == "running"]
    running |= {"status": "succeeded", "end_time": running["start_time"] + 9}
    (attempt,) = server.answers[f"rollouts/{running['rollout_id']}/attempts"]
    attempt |= {"status": "succeeded", "end_time": running["start_time"] + 9}
    spans = server.answers[f"spans of {attempt['attempt_id']}"]
    spans.append({**spans[0], "span_id": "b" * 16, "sequence_id": 2})
    second = await import_agent_lightning(url, uri, ignore)
    assert (second.rollouts, second.spans, second.unfinished, second.there_already) == (0, 1, 2, 5)
    store = await open_store(uri)
    rollout = await found(store, "runs")
    assert (rollout.status, rollout.end_time) == ("succeeded", running["end_time"])
    await store.close()


async def test_a_rollout_that_the_store_has_from_elsewhere_is_left_alone(url: str, uri: str) -> None:
    store = await open_store(uri)
    own = await store.enqueue_rollout("mine", rollout_id=BY_TASK["called"]["rollout_id"])
    imported = await import_agent_lightning(url, uri, ignore)
    assert imported.changed["rollouts whose id another rollout of the store has, left out"] == 1
    assert await store.get_rollout_by_id(own.rollout_id) == own
    await store.close()


async def test_a_store_behind_a_server_gets_all_but_the_times(
    url: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEYDEN_STORE_TOKEN", TOKEN)
    store = await open_store(uri)
    with StoreServer() as serving:
        imported = await import_agent_lightning(url, serving.add(store), ignore)
    assert (imported.rollouts, imported.spans) == (8, 12)
    assert imported.changed["rollouts whose times are those of the import"] == 8
    ran = await found(store, "ran")
    assert ran.metadata["agent_lightning"]["start_time"] == BY_TASK["ran"]["start_time"]
    await store.close()


def test_the_command_says_what_it_wrote_and_what_it_could_not(
    url: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["import", "agent-lightning", url, "--to", uri]) == 0
    first, unfinished, changed = capsys.readouterr().out.splitlines()
    assert first == (
        "imported 8 rollouts, 8 attempts, 12 spans, 2 rewards, 5 model calls with messages, 2 resources from "
        f"{url} into {uri}"
    )
    assert unfinished.startswith("not ended in Agent Lightning: 3 rollouts")
    assert changed == (
        "not as it was: 1 API keys of LLMs, left out; 1 LLMs of a proxy, imported as LLMs; 1 resources of the kind "
        "prompt_template with the engine poml, left out; 1 earlier versions of resources, which the server no longer "
        "has; 1 time limits of rollouts that are not above 0, left out; 2 attributes removed that only Leyden's "
        "gateway may set; 1 spans whose ids are not OpenTelemetry's, replaced by hashes; 5 statistics of workers, "
        "left out"
    )
    assert cli(["import", "agent-lightning", url, "--to", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["there_already"] == 5


@pytest.mark.parametrize(
    ("source", "to", "says"),
    [
        ("mongodb://me:secret@db/agl", "sqlite:///x.db", "agl store --backend mongo --mongo-uri URI"),
        ("ftp://db", "sqlite:///x.db", "'ftp://db' is not the URL of a store server"),
        ("http://127.0.0.1:9", "memory://", "--to memory:// ends with this command"),
    ],
)
async def test_what_cannot_work_is_one_line(source: str, to: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        await import_agent_lightning(source, to, ignore)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("no", ": no$"),
        ("<!DOCTYPE html>\n<html>\n<p>Not here</p>", "$"),
        ('{\n"detail": "no"\n}', r': { "detail": "no" }$'),
    ],
)
async def test_another_server_is_named(page: str, says: str, uri: str) -> None:
    async def refuse(request: Request) -> Response:
        return Response(page, 404)

    with StoreServer() as serving:
        url = serving.add_app(Starlette(routes=[Route("/{path:path}", refuse)]))
        with pytest.raises(UsageError, match=rf"v1/agl/health answers with status 404{says}"):
            await import_agent_lightning(url, uri, ignore)


PYTHON = os.environ.get("LEYDEN_AGENT_LIGHTNING")


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="LEYDEN_AGENT_LIGHTNING names no Python with agentlightning 0.3")
async def test_a_real_server(uri: str, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_lightning_server, "PAGE", 3)
    monkeypatch.setattr(agent_lightning_server, "SPANS", 2)
    script = Path(__file__).parents[5] / "scripts/record_agent_lightning.py"
    command = [str(PYTHON), str(script), "serve", str(unused_tcp_port)]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=alone, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = await asyncio.to_thread(process.stdout.readline)
        try:
            first: Imported = await import_agent_lightning(url.strip(), uri, ignore)
            second = await import_agent_lightning(url.strip(), uri, ignore)
        finally:
            process.stdin.close()
    assert (first.rollouts, first.attempts, first.spans, first.rewards, first.calls) == (8, 8, 12, 2, 5)
    assert (second.rollouts, second.attempts, second.spans, second.there_already) == (0, 0, 0, 5)
