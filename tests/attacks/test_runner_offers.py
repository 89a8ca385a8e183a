"""Attacks on machines that run `leyden run --server`: by the server that they ask, and by who reads the network."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leyden.core.cli.main import run
from leyden.core.errors import UsageError
from leyden.core.gateway.server import GatewayServer
from leyden.core.trainer.desk import TOKEN, Offer
from leyden.core.trainer.working_for import ElsewherePlan

NAMED = Offer(sitting="s", run="r", key="00", store_token="t")


def plan(**changes: Any) -> ElsewherePlan:
    given: dict[str, Any] = {"server": "http://127.0.0.1:9", "token": "t", "agent": "own.py:agent", **changes}
    return ElsewherePlan(**given)


@pytest.fixture
async def hostile(tmp_path: Path) -> AsyncGenerator[tuple[str, list[str]]]:
    """A server that names a command, and the requests that it got."""
    asked: list[str] = []

    async def offer(request: Request) -> Response:
        asked.append(request.url.path)
        named = msgspec.structs.replace(NAMED, agent=("touch", str(tmp_path / "harmed")))
        return Response(msgspec.json.encode(named))

    server = GatewayServer(Starlette(routes=[Route("/runners/offer", offer)]))
    yield await server.start(), asked
    await server.stop()


async def test_a_server_cannot_have_a_command_run(
    hostile: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A server answers with a command of its choice: it is not even asked, and gets no token."""
    monkeypatch.setenv(TOKEN, "t")
    url, asked = hostile
    assert await asyncio.to_thread(run, ["run", "--server", url]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "file.py:agent" in said
    assert "--trust-server" in said
    assert asked == []
    assert not (tmp_path / "harmed").exists()


def test_the_agent_of_the_command_line_is_the_one_that_is_run() -> None:
    """A server names a command in place of the agent that was given."""
    spec = plan().spec(msgspec.structs.replace(NAMED, agent=("rm", "-r", "x")))
    assert spec.agent == "own.py:agent"


@pytest.mark.parametrize(
    ("option", "named", "given"),
    [
        ("--reward", {"reward": "os:system"}, {"reward": "own.py:score"}),
        ("--input", {"input": "os:system"}, {"input": "own.py:make"}),
        ("--hook", {"hooks": ("os:system",)}, {"hooks": ("own.py:Hook",)}),
    ],
)
def test_a_server_cannot_have_other_code_run(option: str, named: dict[str, Any], given: dict[str, Any]) -> None:
    """A server names a function of any module beside an agent that was given."""
    offer = msgspec.structs.replace(NAMED, **named)
    with pytest.raises(UsageError, match=f"names {option} os:system.*--trust-server"):
        plan().spec(offer)
    spec = plan(**given).spec(offer)
    assert (spec.reward, spec.input, spec.hooks) == (given.get("reward"), given.get("input"), given.get("hooks", ()))
    trusting = plan(trust_server=True).spec(offer)
    assert (trusting.reward, trusting.input, trusting.hooks) == (offer.reward, offer.input, offer.hooks)


@pytest.mark.parametrize(
    "server", ["http://10.0.0.5:8765", "http://train:8765", "http://[fd00::1]:1", "http://127.0.0.1.example.com"]
)
def test_a_token_is_not_sent_where_the_network_can_read_it(
    server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads the network would learn the run's token."""
    monkeypatch.setenv(TOKEN, "t")
    assert run(["run", "own.py:agent", "--server", server]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "--insecure" in said
    plan(server=server, insecure=True)
    plan(server=server.replace("http:", "https:"))


@pytest.mark.parametrize("server", ["http://127.0.0.1:1", "http://127.9.9.9:1", "http://[::1]:1", "http://LOCALHOST:1"])
def test_this_machine_itself_needs_no_encryption(server: str) -> None:
    """Nobody else reads the loopback."""
    plan(server=server)
