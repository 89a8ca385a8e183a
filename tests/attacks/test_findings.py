"""What a review has found that no other file here attacks as it was found; docs/attacks.md has all findings.

These use only what an old version had, too, so that they can be run against one.
"""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
import pytest
from forging import CALL, forged_span
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.data import semconv
from leyden.core.data.production import CaptureBegin, CaptureBegun, CaptureEnd
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import UsageError
from leyden.core.masking import mask_text
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import finished, running
from leyden.core.testing.scripted_gateway import ScriptedGateway, scripted_gateway
from leyden.core.testing.servers.store_server import ACCESS, StoreServer
from leyden.core.tracing.context import current_attempt
from leyden.core.trainer.agents.remote_workers import RemoteWorkersPlan
from leyden.core.trainer.agents.runner_api import Offer
from leyden.core.trainer.config import RunConfig, save_config
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

ROOT = Path(__file__).parents[2]
CAPTURE_TOKEN = "captures"
STORE_TOKEN = "planted-store-token-x7"


async def trained(store: LightningStore, rollout_id: str) -> int:
    """How many calls of a rollout would be learned from."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    spans = (await store.query_spans(rollout_id)).items
    return len(assemble(rollout, rollout.attempt, spans, Selector()).transitions)


@pytest.mark.parametrize("page", ["attacks.md", "security.md"])
def test_the_tests_that_pages_name_are_there(page: str) -> None:
    named = re.findall(r"`((?:[\w-]+/)*test_\w+\.py)(?:::(\w+))?`", (ROOT / "docs" / page).read_text())
    assert len(named) > 10
    for path, name in named:
        file = ROOT / path if "/" in path else Path(__file__).with_name(path)
        assert file.exists(), path
        assert f"def {name}" in file.read_text(), f"{path}::{name}"


# --- 2: forged calls train


async def test_2a_an_agents_ordinary_span_is_not_trained() -> None:
    """An agent in Python notes a span with the ids and log-probabilities of a call that it never made."""

    def agent(task: Any) -> str:
        attempt = current_attempt()
        assert attempt is not None
        attempt.notes.append(forged_span(attempt.rollout_id, attempt.attempt_id))
        return "done"

    store = MemoryStore()
    rollout = await store.enqueue_rollout("task", mode="train")
    async with running(store, agent):
        await finished(store, [rollout.rollout_id])
    assert (await store.query_spans(rollout.rollout_id)).total > 0
    assert await trained(store, rollout.rollout_id) == 0
    await store.close()


@asynccontextmanager
async def a_served_attempt() -> AsyncGenerator[tuple[MemoryStore, tuple[str, str], str]]:
    """A store behind its server: the store, the ids of an attempt, and the URL."""
    store = MemoryStore()
    rollout = await store.start_rollout("task", mode="train")
    with StoreServer() as server:
        yield store, (rollout.rollout_id, rollout.attempt.attempt_id), server.add(store)
    await store.close()


@pytest.mark.integration
async def test_2b_a_span_by_the_stores_json_is_not_trained() -> None:
    """An agent has the token of its attempt, and stores the span as JSON."""
    async with a_served_attempt() as (store, ids, url), httpx.AsyncClient() as client:
        packed = msgspec.json.encode({"span": forged_span(*ids, {"x": 1})})
        lists = {semconv.CALL_ID: "forged", semconv.PROMPT_IDS: [1], semconv.RESPONSE_IDS: [2], "x": 1}
        span = json.loads(packed)["span"] | {"attributes": lists | {semconv.RESPONSE_LOGPROBS: [-0.5]}}
        headers = {"authorization": f"Bearer {ACCESS.agent_token(*ids)}"}
        answer = await client.post(f"{url}/add_span", json={"span": span}, headers=headers)
        assert answer.status_code == 200
        [stored] = (await store.query_spans(ids[0])).items
        assert not {semconv.CALL_ID, semconv.PROMPT_IDS, semconv.RESPONSE_IDS} & set(stored.attributes)


@pytest.mark.integration
async def test_2c_a_span_by_otlp_is_not_trained() -> None:
    """An agent has the token of its attempt, and sends the span as an OpenTelemetry exporter does."""
    async with a_served_attempt() as (store, ids, url), httpx.AsyncClient() as client:
        request: Any = ExportTraceServiceRequest()
        span = request.resource_spans.add().scope_spans.add().spans.add()
        span.trace_id, span.span_id, span.name = b"t" * 16, b"s" * 8, "chat"
        span.start_time_unix_nano, span.end_time_unix_nano = 1, 2
        for name, value in forged_span(*ids).attributes.items():
            given = span.attributes.add(key=name).value
            if isinstance(value, bytes):
                given.bytes_value = value
            elif isinstance(value, int):
                given.int_value = value
            elif isinstance(value, list):
                for number in value:
                    given.array_value.values.add().int_value = int(number)
            else:
                given.string_value = str(value)
        kind = {"content-type": "application/x-protobuf"}
        headers = {"authorization": f"Bearer {ACCESS.agent_token(*ids)}", **kind}
        answer = await client.post(f"{url}/v1/traces", content=request.SerializeToString(), headers=headers)
        assert answer.status_code == 200
        assert (await store.query_spans(ids[0])).total == 1
        assert await trained(store, ids[0]) == 0


async def captured(gateway: ScriptedGateway, path: str, said: object, token: str) -> bytes:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/msgpack"}
    async with httpx.AsyncClient(base_url=f"{gateway.url}/capture") as client:
        answer = await client.post(path, content=msgspec.msgpack.encode(said), headers=headers)
    return answer.raise_for_status().content


@asynccontextmanager
async def a_capture() -> AsyncGenerator[tuple[ScriptedGateway, CaptureBegun]]:
    """A gateway that takes captures, and one that has begun."""
    codec = ByteCodec()
    async with scripted_gateway(lambda _: codec.answer("hi"), capture_token=CAPTURE_TOKEN) as gateway:
        begun = await captured(gateway, "/begin", CaptureBegin(), CAPTURE_TOKEN)
        yield gateway, msgspec.msgpack.decode(begun, type=CaptureBegun)


@pytest.mark.integration
async def test_2d_notes_of_a_capture_are_not_trained() -> None:
    """A captured process sends the span with the end of its attempt."""
    async with a_capture() as (gateway, begun):
        notes = [forged_span(begun.rollout_id, begun.attempt_id)]
        await captured(gateway, "/end", CaptureEnd(notes=notes), begun.token)
        assert await trained(gateway.store, begun.rollout_id) == 0


# --- 3 and 6: secrets in files and texts


def test_3_a_stores_token_in_a_url_is_not_in_config_yaml(tmp_path: Path) -> None:
    """The user gives a store by a URL that holds its token; somebody reads the folder of the run."""
    config = RunConfig(
        name="r",
        agent="a.py:a",
        policy="p",
        algorithm="sft",
        algorithm_config={"spans": f"http://{STORE_TOKEN}@host:1"},
    )
    save_config(config, tmp_path / "config.yaml")
    assert STORE_TOKEN not in (tmp_path / "config.yaml").read_text()
    assert STORE_TOKEN not in mask_text(f"cannot reach http://{STORE_TOKEN}@host:1/query_spans")


@pytest.mark.integration
async def test_6a_and_6b_standard_error_of_a_command_is_masked_and_written_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A command writes a key and a sequence that clears the screen, and fails; somebody looks at log and store."""
    key = "ghp_0123456789abcdefABCDEF0123456789abcd"
    store = MemoryStore()
    rollout = await store.enqueue_rollout("task", mode="train")
    async with running(store, CommandAgent(["sh", "-c", f"printf '\\033[2J{key}\\n' >&2; exit 3"])):
        [ended] = await finished(store, [rollout.rollout_id])
    await store.close()
    for text in (capsys.readouterr().err, str(ended.attempt.metadata)):
        assert "[2J" in text
        assert key not in text
        assert "\x1b" not in text.replace("\\x1b", "")


def test_6c_a_key_in_a_command_is_not_in_config_yaml(tmp_path: Path) -> None:
    """The user gives a key to a command by `env`; somebody reads the folder of the run."""
    key = "AIzaSyA0123456789abcdefghijklmnopqrstuv"
    config = RunConfig(name="r", agent=("env", f"GOOGLE_API_KEY={key}", "node", "agent.js"), policy="p")
    save_config(config, tmp_path / "config.yaml")
    assert key not in (tmp_path / "config.yaml").read_text()


SHAPES = {
    "query": ("GET https://host/v1?api-key=abcdef0123456789", "abcdef0123456789"),
    "header": ("x-api-key: abcdef0123456789", "abcdef0123456789"),
    "Basic": ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "AWS": ("signed with AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "GitHub": ("cloning with ghp_0123456789abcdefABCDEF0123456789abcd", "ghp_0123456789abcdef"),
    "JWT": ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", "eyJzdWIiOiIxMjM0"),
    "NVIDIA": ("key nvapi-0123456789abcdefABCDEF0123456789abcdefABCDEF", "nvapi-0123456789abcdef"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_6d_keys_are_masked_by_their_shape(shape: str) -> None:
    """A key is in an error's text or in a log's line."""
    text, secret = SHAPES[shape]
    assert secret not in mask_text(text)


# --- 7: remote runners


def test_7a_a_server_does_not_name_what_is_run() -> None:
    """A server names a command of its choice to whoever runs agents for it."""
    offered = {"sitting": "s", "run": "r", "key": "00", "store_token": "t", "agent": ["touch", "harmed"]}
    offer = msgspec.convert(offered, Offer)  # 42280a9 had its key, too
    with pytest.raises(UsageError):
        RemoteWorkersPlan(server="http://127.0.0.1:9", token="t").spec(offer)


def test_7b_a_token_is_not_sent_over_plain_http() -> None:
    """Somebody reads the network."""
    with pytest.raises(UsageError):
        RemoteWorkersPlan(server="http://10.0.0.5:8765", token="t", agent="own.py:agent")


# --- 9: Host headers


@pytest.mark.integration
async def test_9d_another_host_is_not_answered() -> None:
    """A web page has had its own name lead to this machine."""
    async with scripted_gateway(lambda _: ByteCodec().answer("hi")) as gateway, aiohttp.ClientSession() as session:
        for path in ("/metrics", "/openapi.json", "/healthz"):
            async with session.get(gateway.url + path, headers={"host": "evil.example"}) as answer:
                assert answer.status == 421


# --- Found by the access table


@pytest.mark.integration
async def test_the_token_of_an_ended_attempt_lists_no_models() -> None:
    """An agent keeps its token, and asks after its attempt's end, also where an upstream's models are listed."""
    async with scripted_gateway(lambda _: ByteCodec().answer("hi")) as gateway, httpx.AsyncClient() as client:
        attempt = await gateway.open_attempt()
        (await client.post(f"{attempt.base_url}/chat/completions", json=CALL)).raise_for_status()
        await gateway.store.update_attempt(attempt.rollout_id, attempt.attempt_id, "succeeded")
        assert (await client.get(f"{attempt.base_url}/models")).status_code == 403


@pytest.mark.integration
async def test_a_capture_that_has_ended_stays_as_it_ended() -> None:
    """A captured process ends its attempt again, as failed, and with a reward."""
    async with a_capture() as (gateway, begun):
        await captured(gateway, "/end", CaptureEnd(), begun.token)
        reward = forged_span(begun.rollout_id, begun.attempt_id, {semconv.REWARD_VALUE: 1.0})
        await captured(gateway, "/end", CaptureEnd(failed=True, notes=[reward]), begun.token)
        found = await gateway.store.get_rollout_by_id(begun.rollout_id)
        assert found is not None
        assert found.status == "succeeded"
        assert (await gateway.store.query_spans(begun.rollout_id)).total == 0
