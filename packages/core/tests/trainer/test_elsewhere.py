"""Serving for a loop that runs elsewhere: its door opens to the token alone, and replicas come and go as it says."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.routing import Route as Answered

from leyden.core.algorithm.outside import Door
from leyden.core.algorithm.verl.algorithm import VERL
from leyden.core.data.route import Route
from leyden.core.errors import PolicyError, UsageError
from leyden.core.gateway.server import GatewayServer
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.elsewhere import Elsewhere, model_info, serve_elsewhere
from leyden.core.trainer.folder import RunFolder

if TYPE_CHECKING:
    from leyden.core.engine.replicas import ReplicaEngine

POLICY = Path(__file__).parents[4] / "examples/calculator_langgraph/policy"


class Replicas:
    """Notes what an engine over replicas is told."""

    def __init__(self) -> None:
        self.replicas: dict[str, int] = {}
        self.version = 0
        self.told: list[str] = []

    async def add(self, url: str) -> None:
        self.replicas[url] = 0
        self.told.append(f"add {url}")

    async def remove(self, url: str) -> None:
        del self.replicas[url]
        self.told.append(f"remove {url}")

    @asynccontextmanager
    async def updating(self, version: int) -> AsyncGenerator[None]:
        yield
        self.version = version
        self.told.append(f"version {version}")


def elsewhere(engine: Replicas) -> Elsewhere:
    return Elsewhere(cast("ReplicaEngine", engine))


async def test_replicas_are_those_that_the_loop_names() -> None:
    engine = Replicas()
    served = elsewhere(engine)
    await served.serve_from(["http://a", "http://b"], 0)
    await served.serve_from(["http://a", "http://b"], 0)
    await served.serve_from(["http://b", "http://c"], 1)
    assert engine.told == ["add http://a", "add http://b", "remove http://a", "version 1", "add http://c"]


@pytest.mark.parametrize(
    ("authorization", "opened", "status"),
    [("Bearer secret", True, 200), ("Bearer wrong", True, 401), ("", True, 401), ("Bearer secret", False, 404)],
)
async def test_the_door_opens_to_the_token_alone(*, authorization: str, opened: bool, status: int) -> None:
    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    served = elsewhere(Replicas())
    served.door = Door(url="", token="secret")
    if opened:
        assert served.open(Starlette(routes=[Answered("/hello", hello)])) == served.door
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
    with pytest.raises(PolicyError, match="cannot read the configuration of"):
        model_info(str(tmp_path), None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"frozen": {"judge": "j"}, "routes": (Route(agent="j", to="judge"),)},
            "this run has policy, judge",
        ),
        ({"deterministic": True}, "leave out --deterministic"),
        ({"engine_log": True, "update": "drain"}, "leave out --engine-log, --update"),
    ],
)
async def test_what_it_would_ignore_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    config = RunConfig(name="r", agent="a", policy=str(POLICY), algorithm="verl", **changes)
    with pytest.raises(UsageError, match=says):
        async with serve_elsewhere(RunFolder(tmp_path), config, VERL()):
            raise AssertionError("it was served")
