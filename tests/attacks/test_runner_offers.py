"""Attacks on machines that run `leyden run --server`: by the server that they ask, and by who reads the network."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leyden.core.cli.main import run
from leyden.core.errors import UsageError
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.agents.remote_workers import MOST_ANSWERED, RemoteWorkersPlan, work_for
from leyden.core.trainer.agents.run_proof import PROOF, ProofExchange, challenge, read_challenge
from leyden.core.trainer.agents.runner_api import TOKEN, Offer, RunnerEndpoint
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.serving.address import open_gateway

NAMED = Offer(session="s", run="r", store_token="t")
GIVEN = "the-token-of-the-run"


def plan(**changes: Any) -> RemoteWorkersPlan:
    given: dict[str, Any] = {"server": "http://127.0.0.1:9", "token": "t", "agent": "own.py:agent", **changes}
    return RemoteWorkersPlan(**given)


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


def test_a_server_cannot_have_a_command_given_secrets_of_the_runners_machine() -> None:
    """A server names variables of `leyden run`'s own environment beside the command that was given."""
    offer = msgspec.structs.replace(NAMED, env=("AWS_SECRET_ACCESS_KEY",))
    with pytest.raises(UsageError, match=r"names --env AWS_SECRET_ACCESS_KEY.*--trust-server"):
        plan().spec(offer)
    assert plan(env=("MY_KEY",)).spec(offer).env == ("MY_KEY",)
    assert plan(trust_server=True).spec(offer).env == offer.env


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


# --- Servers that are not the run


class Impostor:
    """Listens where the run is thought to be, and notes all that it is sent; `answers` is what it does with a proof."""

    def __init__(self, answers: Callable[[Request], Response]) -> None:
        self.sent: list[str] = []
        self._answers = answers
        self._server = GatewayServer(Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])]))
        self.url = ""

    async def _answer(self, request: Request) -> Response:
        body = (await request.body()).decode("latin-1")
        self.sent.append(f"{request.method} {request.url} {request.headers.items()} {body}")
        if not request.headers.get("authorization"):
            return Response(status_code=401, headers={"www-authenticate": challenge("a-nonce-of-the-impostor")})
        return self._answers(request)

    async def __aenter__(self) -> "Impostor":
        self.url = await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()


@dataclass
class Recorded:
    """What somebody has read who listens between a run and its runners: requests with their answers."""

    requests: list[tuple[str, str]]
    """Paths and proofs."""
    answers: dict[str, Response]


@pytest.fixture
async def recorded(unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[str, Recorded]]:
    """A run that answers, and what was read when a runner asked it."""
    monkeypatch.setenv(TOKEN, GIVEN)
    store, codec = MemoryStore(), ByteCodec()
    engine = ScriptedEngine(lambda request: codec.answer("hi"))
    config = RunConfig(
        name="run", policy="p", agent="a.py:a", runners=RunnerPlacement(where="remote", port=unused_tcp_port)
    )
    read = Recorded([], {})
    policy = ServedPolicy(name="policy", engine=engine, codec=codec)
    async with open_gateway(store, policy, endpoint=RunnerEndpoint(config)) as (address, _):
        async with aiohttp.ClientSession(base_url=address.url) as session:
            for what, asked in (("offer", "offer"), ("standing", "standing ")):
                async with session.get(f"/runners/{what}") as answer:
                    given = read_challenge(answer.headers["www-authenticate"])
                assert given is not None
                proof = ProofExchange(asked, given[0]).authorization(GIVEN)
                async with session.get(f"/runners/{what}", headers={"authorization": proof}) as answer:
                    body = await answer.read()
                    assert answer.status == 200, "the runner is answered"
                    read.answers[what] = Response(body, headers={PROOF: answer.headers[PROOF]})
                read.requests.append((f"/runners/{what}", proof))
        yield address.url, read
    await engine.close()
    await store.close()


def names_a_command(folder: Path, proof: str | None) -> Callable[[Request], Response]:
    """Answer with a command and a hook of the attacker's choice, under some proof."""
    named = msgspec.structs.replace(NAMED, agent=("touch", str(folder / "harmed")), hooks=("os:system",))
    headers = {} if proof is None else {PROOF: proof}
    return lambda request: Response(msgspec.json.encode(named), headers=headers)


async def check_refused(impostor: Impostor, folder: Path) -> None:
    """`leyden run`, which trusts the run with everything, ends and has neither sent the token nor run anything."""
    trusting = plan(server=impostor.url, token=GIVEN, agent=None, trust_server=True)
    told: list[str] = []
    with pytest.raises(UsageError, match="does not prove that it is the run") as caught:
        await work_for(trusting, told.append, asyncio.Event())
    assert "\n" not in str(caught.value)
    assert told == []
    assert impostor.sent
    assert not any(GIVEN in said for said in impostor.sent)
    assert not (folder / "harmed").exists()


@pytest.mark.parametrize("proof", [None, "", "0" * 64, "\xff\xfe"])
async def test_an_impostor_learns_no_token_and_names_no_agent(tmp_path: Path, proof: str | None) -> None:
    """Somebody listens at the run's URL, asks for a proof and answers with a command, hooks and a proof of its own."""
    async with Impostor(names_a_command(tmp_path, proof)) as impostor:
        await check_refused(impostor, tmp_path)


async def test_an_impostor_that_sends_the_proof_back_is_refused(tmp_path: Path) -> None:
    """It answers with the client's own proof as its own."""

    def reflect(request: Request) -> Response:
        return names_a_command(tmp_path, request.headers["authorization"].split(" ")[3])(request)

    async with Impostor(reflect) as impostor:
        await check_refused(impostor, tmp_path)


async def test_an_impostor_that_asks_for_no_proof_is_refused(tmp_path: Path) -> None:
    """It answers at once, as if nobody had to prove anything."""
    server = GatewayServer(Starlette(routes=[Route("/runners/offer", names_a_command(tmp_path, None))]))
    url = await server.start()
    trusting = plan(server=url, token=GIVEN, agent=None, trust_server=True)
    with pytest.raises(UsageError, match="it answers without requesting a proof"):
        await work_for(trusting, lambda text: None, asyncio.Event())
    await server.stop()
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("what", ["offer", "standing"])
async def test_a_recorded_answer_is_refused(tmp_path: Path, recorded: tuple[str, Recorded], what: str) -> None:
    """Somebody who has read a real answer sends it, with its proof, to another runner, or to another question."""
    answer = recorded[1].answers[what]
    async with Impostor(lambda request: answer) as impostor:
        await check_refused(impostor, tmp_path)


async def test_a_recorded_request_is_refused(recorded: tuple[str, Recorded]) -> None:
    """Somebody who has read a real request sends it again, and its proof for another question."""
    url, read = recorded
    async with aiohttp.ClientSession(base_url=url) as session:
        for path in ("/runners/offer", "/runners/standing", "/runners/workers"):
            for _, proof in read.requests:
                async with session.get(path, headers={"authorization": proof}) as answer:
                    assert answer.status == 401
                    assert b"store_token" not in await answer.read()


@pytest.mark.parametrize("nonce", ["\xff\xfe", "a" * 5000])
async def test_a_challenge_that_is_none_is_refused(nonce: str) -> None:
    """It asks for a proof of what no run would name: bytes that are no text, or far too many."""

    def ask(request: Request) -> Response:
        return Response(status_code=401, headers={"www-authenticate": challenge(nonce)})

    server = GatewayServer(Starlette(routes=[Route("/runners/offer", ask)]))
    trusting = plan(server=await server.start(), token=GIVEN, agent=None, trust_server=True)
    with pytest.raises(UsageError, match="runner protocol 1"):
        await work_for(trusting, lambda text: None, asyncio.Event())
    await server.stop()


@pytest.mark.parametrize("status", [200, 401])
async def test_an_answer_that_is_too_long_is_not_read_to_its_end(status: int) -> None:
    """It answers with more than any run would, before it has proved anything."""

    def answer(request: Request) -> Response:
        return Response(bytes(MOST_ANSWERED + 1), status)

    server = GatewayServer(Starlette(routes=[Route("/runners/offer", answer)]))
    trusting = plan(server=await server.start(), token=GIVEN, agent=None, trust_server=True)
    with pytest.raises(UsageError, match=f"its answer has more than {MOST_ANSWERED} bytes"):
        await work_for(trusting, lambda text: None, asyncio.Event())
    await server.stop()


async def test_the_command_line_ends_with_one_line(tmp_path: Path) -> None:
    """`leyden run --trust-server` meets an impostor."""
    async with Impostor(names_a_command(tmp_path, "0" * 64)) as impostor:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leyden.core.cli", "run", "--server", impostor.url, "--trust-server"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, TOKEN: GIVEN},
        )
        said, errors = await process.communicate()
    assert (process.returncode, said, errors.count(b"\n")) == (2, b"", 1), errors.decode()
    assert b"its answers are ignored" in errors
    assert not (tmp_path / "harmed").exists()
