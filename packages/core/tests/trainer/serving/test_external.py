"""Serving for an external loop: its endpoint accepts only the token, and replicas come and go as the loop requests."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.routing import Route as Answered

from leyden.core.algorithm.external_loop import RunEndpoint
from leyden.core.algorithm.verl.algorithm import VERL
from leyden.core.data.route import Route
from leyden.core.errors import EngineError, PolicyError, TrainingError, UsageError
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.servers.vllm_double import VllmDouble
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import RunAddress
from leyden.core.trainer.serving.external import model_info, serve_external
from leyden.core.trainer.serving.external_replicas import ExternalReplicas
from leyden.core.trainer.serving.serving import Serving

if TYPE_CHECKING:
    from leyden.core.engine.vllm.replicas import ReplicaEngine
    from leyden.core.gateway.app import Gateway

POLICY = Path(__file__).parents[5] / "examples/calculator_langgraph/policy"


class Replicas:
    """Records the calls that an engine over replicas receives."""

    def __init__(self) -> None:
        self.replicas: dict[str, int] = {}
        self.version = 0
        self.calls: list[str] = []

    def check(self) -> None:
        if not self.replicas:
            raise EngineError("no replica is left")

    async def add(self, url: str) -> None:
        self.replicas[url] = 0
        self.calls.append(f"add {url}")

    async def remove(self, url: str) -> None:
        del self.replicas[url]
        self.calls.append(f"remove {url}")

    @asynccontextmanager
    async def updating(self, version: int) -> AsyncGenerator[None]:
        self.calls.append("nothing is drawn")
        yield
        self.version = version
        self.calls.append(f"version {version}")


def external_replicas(engine: Replicas) -> ExternalReplicas:
    return ExternalReplicas(cast("ReplicaEngine", engine))


async def test_replicas_are_those_that_the_loop_names() -> None:
    engine = Replicas()
    served = external_replicas(engine)
    await served.serve_from(["http://a", "http://b"], 0)
    await served.serve_from(["http://a", "http://b"], 0)
    await served.serve_from(["http://b", "http://c"], 1)
    assert engine.calls[:3] == ["add http://a", "add http://b", "remove http://a"]
    assert engine.calls[3:] == ["nothing is drawn", "version 1", "add http://c"]


async def test_a_pause_lasts_until_it_is_said_what_serves_the_new_weights() -> None:
    engine = Replicas()
    served = external_replicas(engine)
    await served.serve_from(["http://a"], 0)
    await served.pause(1)
    await served.pause(1)
    assert (engine.calls, engine.version) == (["add http://a", "nothing is drawn"], 0)
    await served.serve_from(["http://a", "http://b"], 1)
    assert engine.calls[2:] == ["add http://b", "version 1"]
    await served.serve_from(["http://a"], 1)
    assert engine.calls[4:] == ["remove http://b"]


async def test_another_version_than_the_pause_was_for_is_an_error() -> None:
    served = external_replicas(Replicas())
    await served.pause(1)
    with pytest.raises(TrainingError, match="version 2 is served instead of version 1"):
        await served.serve_from([], 2)


async def test_a_pause_that_nobody_ends_leaves_the_version_as_it_was() -> None:
    engine = Replicas()
    served = external_replicas(engine)
    await served.pause(1)
    await served.close()
    assert (engine.calls, engine.version) == (["nothing is drawn"], 0)


async def test_a_run_whose_replicas_are_all_lost_is_told() -> None:
    engine = Replicas()
    served = external_replicas(engine)
    await served.serve_from(["http://a"], 0)
    gateway, address, store = cast("Gateway", None), RunAddress(url="", token="", key=b""), MemoryStore()
    serving = Serving(store, address, {}, gateway, external_replicas=served)
    serving.check_engines()
    await engine.remove("http://a")
    with pytest.raises(EngineError, match="no replica is left"):
        serving.check_engines()
    await store.close()


@pytest.mark.parametrize(
    ("authorization", "opened", "status"),
    [("Bearer secret", True, 200), ("Bearer wrong", True, 401), ("", True, 401), ("Bearer secret", False, 404)],
)
async def test_the_door_opens_to_the_token_alone(*, authorization: str, opened: bool, status: int) -> None:
    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    served = external_replicas(Replicas())
    served.endpoint = RunEndpoint(url="", token="secret")
    if opened:
        assert served.open(Starlette(routes=[Answered("/hello", hello)])) == served.endpoint
    server = GatewayServer(Starlette(routes=[Mount("/loop", served)]))
    url = await server.start()
    async with (
        aiohttp.ClientSession(headers={"authorization": authorization}) as session,
        session.get(f"{url}/loop/hello") as answer,
    ):
        assert answer.status == status
    await server.stop()


@pytest.mark.parametrize(("limit", "length"), [(100, 100), (1 << 20, None), (None, None)])
def test_a_call_is_no_longer_than_what_is_served(limit: int | None, length: int | None) -> None:
    found = model_info(str(POLICY), limit)
    own: dict[str, Any] = json.loads((POLICY / "config.json").read_text())
    assert found.context_length == (length or own["max_position_embeddings"] - 1)
    assert found.vocab_size == own["vocab_size"]


def test_a_policy_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"is not a policy folder: it has no config\.json"):
        model_info(str(tmp_path), None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"frozen": {"judge": "j"}, "routes": (Route(agent="j", to="judge"),)},
            "this run has policy, judge",
        ),
        ({"deterministic": True}, "remove --deterministic"),
        ({"engine_log": True, "update": "drain"}, "remove --engine-log, --update"),
    ],
)
async def test_what_it_would_ignore_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    config = RunConfig(name="r", agent="a", policy=str(POLICY), algorithm="verl", **changes)
    with pytest.raises(UsageError, match=says):
        async with serve_external(RunFolder(tmp_path), config, VERL()):
            raise AssertionError("it was served")


@asynccontextmanager
async def run_with_replicas(path: Path, count: int) -> AsyncGenerator[tuple[str, list[VllmDouble]]]:
    """A run whose policy is served by so many stand-ins; its root URL, and they."""
    config = RunConfig(name="r", agent="a", policy=str(POLICY), algorithm="verl", steps=9)
    replicas = [VllmDouble() for _ in range(count)]
    for replica in replicas:
        await replica.start()
    folder = RunFolder(path)
    folder.append_metrics({"step": 4, "reward": 0.5, "served_trained_gap": 1e-6, "actor/pg_loss": -0.25})
    folder.append_metrics({"step": 4, "held_out": "val", "success": 0.5})
    folder.append_metrics({"step": 4, "alert": "mismatch", "message": "it grew"})
    algorithm = VERL({"data": {"max_prompt_length": 60, "max_response_length": 60}})
    async with serve_external(folder, config, algorithm) as serving:
        assert serving.external_replicas is not None
        assert serving.external_replicas.endpoint.token not in ("", serving.address.token)
        await serving.external_replicas.serve_from([replica.url for replica in replicas], 4)
        yield serving.address.url, replicas
    for replica in replicas:
        await replica.stop()


async def text_of(url: str) -> str:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/metrics") as answer:
        assert answer.status == 200
        return await answer.text()


async def page_of(url: str) -> dict[str, float]:
    """Every number of the page by its name and labels."""
    text = await text_of(url)
    types = re.findall("^# TYPE ([^ ]+)", text, re.MULTILINE)
    assert len(types) == len(set(types))
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_one_page_has_the_numbers_of_gateway_store_run_and_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leyden.core.gateway.http.metrics_page.CACHE_SECONDS", 0.0)
    async with run_with_replicas(tmp_path, 2) as (url, replicas):
        names = [replica.url.removeprefix("http://") for replica in replicas]
        found = await page_of(url)
        assert found["leyden_gateway_policy_version policy=policy"] == 4
        assert found["leyden_store_queue_length"] == 0
        assert found["leyden_run_step"] == 4
        assert found["leyden_step_actor_pg_loss number=actor/pg_loss"] == -0.25
        assert {name: found[f"leyden_up part={name}"] for name in ("store", "run")} == {"store": 1, "run": 1}
        for name in names:
            assert found[f"vllm:num_requests_running engine=0 model_name=base policy=policy replica={name}"] == 0
        await replicas[0].stop()
        found = await page_of(url)
        assert [found[f"leyden_up part=engine policy=policy replica={name}"] for name in names] == [0, 1]
        assert found["leyden_run_step"] == 4


async def test_every_number_that_the_page_on_metrics_names_is_there(tmp_path: Path) -> None:
    text = (POLICY.parents[2] / "docs/metrics.md").read_text()
    named = set(re.findall(r"\bleyden_[a-z_]+[a-z]\b", text))
    async with run_with_replicas(tmp_path, 1) as (url, _):
        served = set(re.findall("^# TYPE ([^ ]+)", await text_of(url), re.MULTILINE))
    assert len(named) > 20
    assert named <= served, named - served


def test_what_prometheus_is_told_to_do_can_be_read() -> None:
    text = (POLICY.parents[2] / "docs/metrics.md").read_text()
    scrape, alerts = (yaml.safe_load(block) for block in re.findall("```yaml\n(.*?)```", text, re.DOTALL))
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"][0]["targets"]
    assert job["scrape_timeout"] < job["scrape_interval"]
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert all(rule.keys() >= {"alert", "expr", "annotations"} for rule in rules)
