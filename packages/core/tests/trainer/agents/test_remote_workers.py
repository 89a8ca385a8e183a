"""Remote workers: `work_for`, and the runner endpoint of a run as its server answers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import LeydenError, UsageError
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.workers import autoscaling
from leyden.core.runner.workers.autoscaling import ScalingRule
from leyden.core.store.http.access import machine_name
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import finished, rewards_in
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.trainer.agents import remote_workers, runner_api, worker_demand
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.agents.remote_workers import NoServer, RemoteWorkersPlan, work_for
from leyden.core.trainer.agents.run_proof import PROOF, NonceIssuer, ProofExchange, read_challenge, same
from leyden.core.trainer.agents.runner_api import TOKEN, RunnerEndpoint
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.serving.address import open_gateway

GIVEN = "the-token-of-the-run"
AGENTS = """
import time
from pathlib import Path

import httpx

client = httpx.AsyncClient(base_url="https://api.openai.com/v1")


async def asks(task):
    answer = await client.post("/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "?"}]})
    return answer.json()["choices"][0]["message"]["content"]


def waits(task):
    until = time.monotonic() + 100
    while not Path(task).exists() and time.monotonic() < until:
        time.sleep(0.05)
    return "ok"


def score(task, result):
    return float(len(result))
"""


class ServedRun:
    """Store and gateway of a run, with its runner endpoint."""

    def __init__(self, folder: Path, port: int) -> None:
        self.agents = folder / "agents.py"
        self.agents.write_text(AGENTS)
        self.store, self._port = MemoryStore(), port
        self.url = f"http://127.0.0.1:{port}"

    @contextlib.asynccontextmanager
    async def serve(self, **changes: Any) -> AsyncGenerator[str]:
        codec = ByteCodec()
        policy = ServedPolicy(name="policy", engine=ScriptedEngine(lambda request: codec.answer("hi")), codec=codec)
        given: dict[str, Any] = {"agent": f"{self.agents}:asks", "reward": f"{self.agents}:score", **changes}
        config = RunConfig(name="run", policy="p", runners=RunnerPlacement(where="remote", port=self._port), **given)
        async with open_gateway(self.store, policy, endpoint=RunnerEndpoint(config)) as (address, _):
            yield address.url

    async def runs(self, count: int) -> None:
        """Queue rollouts and wait until they have succeeded, with the reward that the run says."""
        ids = [(await self.store.enqueue_rollout(n, mode="train")).rollout_id for n in range(count)]
        for rollout in await finished(self.store, ids):
            assert rollout.status == "succeeded"
            spans = (await self.store.query_spans(rollout.rollout_id)).items
            assert rewards_in(spans) == [2.0]


@pytest.fixture
def served_run(tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> ServedRun:
    monkeypatch.setenv(TOKEN, GIVEN)
    return ServedRun(tmp_path, unused_tcp_port)


def plan(url: str, **changes: Any) -> RemoteWorkersPlan:
    given: dict[str, Any] = {"server": url, "token": GIVEN, "patience": 20.0, "trust_server": True, **changes}
    return RemoteWorkersPlan(**given)


async def test_workers_do_what_the_run_wants_and_end_with_it(served_run: ServedRun) -> None:
    messages: list[str] = []
    async with served_run.serve() as url:
        working = asyncio.create_task(work_for(plan(url), messages.append, asyncio.Event()))
        await served_run.runs(5)
    await asyncio.wait_for(working, 20)
    assert messages[-1] == "run has no more work"


async def test_workers_go_on_with_a_run_that_is_gone_on_with(served_run: ServedRun) -> None:
    messages: list[str] = []
    working = asyncio.create_task(work_for(plan(served_run.url), messages.append, asyncio.Event()))
    with pytest.raises(KeyError):
        async with served_run.serve():
            await served_run.runs(2)
            raise KeyError("the run fails")
    assert not working.done()
    async with served_run.serve():
        await served_run.runs(2)
    await asyncio.wait_for(working, 20)
    assert "run was resumed" in messages


async def test_workers_stop_when_they_are_told_to(served_run: ServedRun) -> None:
    stopped = asyncio.Event()
    async with served_run.serve() as url:
        working = asyncio.create_task(work_for(plan(url), lambda text: stopped.set(), stopped))
        await asyncio.wait_for(working, 30)


@pytest.fixture
def quick_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = ScalingRule(least=1, most=4, out_after=0.5, in_after=2.0)
    monkeypatch.setattr(worker_demand, "scaling_rule", lambda config: rule)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    for module in (worker_demand, autoscaling):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)


async def present(url: str, count: int) -> None:
    """Wait until the page of metrics shows `count` workers, and that as many are wanted."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            async with session.get(f"{url}/metrics") as answer:
                text = await answer.text()
            if all(f'leyden_run_workers{name}{{run="run"}} {count}.0' in text for name in ("", "_wanted")):
                return
            await asyncio.sleep(0.2)


@pytest.mark.integration
@pytest.mark.usefixtures("quick_scaling", "quick_workers")
async def test_the_number_of_workers_follows_the_load_of_the_run(served_run: ServedRun, tmp_path: Path) -> None:
    messages, go = list[str](), tmp_path / "go"
    async with served_run.serve(agent=f"{served_run.agents}:waits", concurrency=2) as url:
        given = plan(url, workers=1, max_workers=3)
        working = asyncio.create_task(work_for(given, messages.append, asyncio.Event()))
        ids = [(await served_run.store.enqueue_rollout(str(go))).rollout_id for _ in range(20)]
        async with asyncio.timeout(60):
            while len(await served_run.store.query_rollouts(status_in=["preparing", "running"])) < 6:
                await asyncio.sleep(0.1)
        go.write_text("")
        ended = await finished(served_run.store, ids)
        await present(url, 1)
    await asyncio.wait_for(working, 20)
    assert [(rollout.status, rollout.attempt.sequence_id) for rollout in ended] == [("succeeded", 1)] * 20
    assert len({rollout.attempt.worker_id for rollout in ended}) == 3
    assert messages[0] == f"1 to 3 workers run {served_run.agents}:waits for run at {url}"


@pytest.mark.integration
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize(("drain", "attempts"), [(60.0, 1), (0.5, 2)])
async def test_a_stop_lets_rollouts_end_for_as_long_as_it_may(
    served_run: ServedRun, tmp_path: Path, drain: float, attempts: int
) -> None:
    stopped, go = asyncio.Event(), tmp_path / "go"
    async with served_run.serve(agent=f"{served_run.agents}:waits") as url:
        rollout = await served_run.store.enqueue_rollout(str(go))
        working = asyncio.create_task(work_for(plan(url, drain=drain), lambda text: None, stopped))
        async with asyncio.timeout(30):
            while not await served_run.store.query_rollouts(status_in=["running"]):
                await asyncio.sleep(0.1)
        stopped.set()
        await asyncio.sleep(1.5)  # until no claim is in flight
        later = await served_run.store.enqueue_rollout(str(go))
        await asyncio.sleep(0.6)
        go.write_text("")
        await asyncio.wait_for(working, 30)
        assert not isinstance(await served_run.store.get_rollout_by_id(later.rollout_id), AttemptedRollout)
        if attempts == 1:
            (ended,) = await finished(served_run.store, [rollout.rollout_id])
            assert ended.status == "succeeded"
        else:  # it was put back
            assert len(await served_run.store.query_rollouts(status_in=["requeuing"])) == 1


async def test_a_run_of_a_version_that_does_not_count_workers_is_named(
    served_run: ServedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaling, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(runner_api, "WORKERS_PATH", "/other")
    async with served_run.serve() as url:
        with pytest.raises(UsageError, match=r"does not report how many workers it needs: leave out --max-workers"):
            await work_for(plan(url, max_workers=2), lambda text: None, asyncio.Event())


def test_bounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="max-workers 2 is below workers 3"):
        plan("http://127.0.0.1:9", workers=3, max_workers=2)


async def test_a_run_that_is_gone_for_too_long_is_an_error(
    served_run: ServedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "PAUSE_SECONDS", 0.05)
    with pytest.raises(NoServer, match=r"http://127.* has not answered"):
        await work_for(plan("http://127.0.0.1:9", patience=0.3), lambda text: None, asyncio.Event())


@pytest.mark.parametrize(
    ("changes", "offer", "kind", "says"),
    [
        ({"token": "wrong"}, {}, UsageError, "does not accept the token in LEYDEN_RUN_TOKEN"),
        ({"agent": "nowhere.py:agent"}, {}, UsageError, "nowhere.py does not exist"),
        ({}, {"agent": "<langgraph.Graph>"}, UsageError, "a live object there, <langgraph.Graph>: give it as file.py"),
        ({}, {"agent": None}, UsageError, "run run names no agent"),
    ],
)
async def test_what_cannot_work_is_said_at_once(
    served_run: ServedRun, changes: dict[str, Any], offer: dict[str, Any], kind: type[LeydenError], says: str
) -> None:
    async with served_run.serve(**offer) as url:
        with pytest.raises(kind, match=says):
            await work_for(plan(url, **changes), lambda text: None, asyncio.Event())


async def test_the_desk_answers_nobody_without_a_proof_and_names_versions_to_older_runners(
    served_run: ServedRun, caplog: pytest.LogCaptureFixture
) -> None:
    async with served_run.serve() as url, aiohttp.ClientSession() as session:
        for path in ("offer", "standing", "workers"):
            async with session.get(f"{url}/runners/{path}") as answer:
                assert (answer.status, await answer.text()) == (401, "prove that you have the run's token")
            for _ in range(2):
                older = {"authorization": f"Bearer {GIVEN}"}
                async with session.get(f"{url}/runners/{path}", headers=older) as answer:
                    assert (answer.status, (await answer.text()).count("\n")) == (401, 0)
                    assert "(runner protocol 2), not the token itself (protocol 1)" in await answer.text()
    assert caplog.text.count("refused a runner that sends the run's token itself") == 1


async def test_a_run_of_an_older_version_is_named(served_run: ServedRun) -> None:
    async def refuse(request: Request) -> Response:
        return Response(status_code=401)

    server = GatewayServer(Starlette(routes=[Route("/runners/offer", refuse)]))
    url = await server.start()
    with pytest.raises(UsageError, match=r"requests the run's token itself \(runner protocol 1\).*update leyden-core"):
        await work_for(plan(url), lambda text: None, asyncio.Event())
    await server.stop()


async def test_a_nonce_that_was_too_old_is_asked_for_again(
    served_run: ServedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "PAUSE_SECONDS", 0.01)
    real, uses = NonceIssuer.use, list[str]()

    def use(challenges: NonceIssuer, nonce: str) -> bool:
        uses.append(nonce)
        return real(challenges, nonce) and len(uses) > 1

    monkeypatch.setattr(NonceIssuer, "use", use)
    stopped = asyncio.Event()
    async with served_run.serve() as url:
        await work_for(plan(url), lambda text: stopped.set(), stopped)
    assert len(uses) > 1


async def test_machines_get_tokens_of_their_own_and_no_key(served_run: ServedRun) -> None:
    async with served_run.serve() as url, aiohttp.ClientSession() as session:
        offers: list[dict[str, Any]] = []
        for _ in range(2):
            async with session.get(f"{url}/runners/offer") as answer:
                given = read_challenge(answer.headers["www-authenticate"])
            assert given is not None
            exchange = ProofExchange("offer", given[0])
            headers = {"authorization": exchange.authorization(GIVEN)}
            async with session.get(f"{url}/runners/offer", headers=headers) as answer:
                body = await answer.read()
                assert same(answer.headers[PROOF], exchange.answer_proof(GIVEN, body))
            offers.append(msgspec.json.decode(body))
        names = {machine_name(offer["store_token"]) for offer in offers}
        assert len(names) == 2
        assert None not in names
        assert all("key" not in offer for offer in offers)


@pytest.mark.parametrize("server", ["10.0.0.5:8765", "ftp://box", "http://"])
def test_a_server_is_a_url(server: str) -> None:
    with pytest.raises(UsageError, match="--server must be the URL of a run"):
        plan(server)
