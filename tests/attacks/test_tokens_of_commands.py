"""Attacks by a command that is an agent: it looks for tokens that open more than its own attempt."""

import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from leyden.core.errors import UsageError
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import error_of, finished
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.trainer.agents.run_proof import ProofExchange, read_challenge
from leyden.core.trainer.agents.runner_api import TOKEN, RunnerEndpoint
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.serving.address import open_gateway

PLANTED = {
    TOKEN: "planted-run-token",
    "LEYDEN_STORE_TOKEN": "planted-store-token",
    "LEYDEN_CAPTURE_TOKEN": "planted-capture-token",
    "LITELLM_API_KEY": "planted-litellm",
    "OPENAI_KEY": "planted-openai",
    "OPENAI_API_KEY": "planted-openai-too",
    "AWS_SECRET_ACCESS_KEY": "planted-aws",
    "DATABASE_URL": "postgres://me:planted-password@host/db",
}
THIEF = """
import json, os, sys, urllib.error, urllib.request
from urllib.parse import urlsplit

from leyden.core.trainer.agents.run_proof import ProofExchange, read_challenge

seen, process = [dict(os.environ)], os.getppid()
for _ in range(2):  # what supervises it, and the worker
    with open(f"/proc/{process}/environ", "rb") as file:
        seen.append(dict(entry.partition("=")[::2] for entry in file.read().decode().split(chr(0)) if entry))
    with open(f"/proc/{process}/stat") as file:
        process = int(file.read().rpartition(")")[2].split()[1])
root = "http://" + urlsplit(os.environ["OPENAI_BASE_URL"]).netloc
answers, asked = {}, 0


def ask(path, authorization):
    request = urllib.request.Request(root + path, headers={"authorization": authorization})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            answers[path] = answer.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return error.headers.get("www-authenticate", "")


for value in {value for variables in seen for value in variables.values() if value.isprintable() and value.isascii()}:
    for path, what in (
        ("/runners/offer", "offer"),
        ("/runners/standing", "standing "),
        ("/runners/workers", "workers"),
    ):
        nonce, _ = read_challenge(ask(path, "Bearer " + value))
        ask(path, ProofExchange(what, nonce).authorization(value))
        asked += 1
assert asked
with open(sys.argv[1], "w") as file:
    json.dump([seen, answers], file)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="environments are looked up in /proc")
async def test_a_command_finds_no_token_that_opens_more_than_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command tries every variable of its own, of its supervisor and of its worker at the run's API."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    store, codec = MemoryStore(), ByteCodec()
    policy = ServedPolicy(name="policy", engine=ScriptedEngine(lambda request: codec.answer("hi")), codec=codec)
    (tmp_path / "thief.py").write_text(THIEF)
    command = (sys.executable, str(tmp_path / "thief.py"), str(tmp_path / "found.json"))
    config = RunConfig(name="run", policy="p", agent=command)
    async with open_gateway(store, policy, endpoint=RunnerEndpoint(config)) as (address, _):
        given: dict[str, Any] = {"store_url": f"{address.url}/store", "store_token": address.token}
        key = address.key.hex()
        spec = WorkerSpec(
            agent=command, gateway_url=address.url, key=key, log_file=str(tmp_path / "agents.log"), **given
        )
        pool = WorkerPool(spec)
        await pool.start()
        try:
            rollout = await store.enqueue_rollout("task")
            (ended,) = await finished(store, [rollout.rollout_id])
        finally:
            await pool.stop()
        assert ended.status == "succeeded", error_of(ended)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{address.url}/runners/offer") as it:
                challenge = read_challenge(it.headers["www-authenticate"])
            assert challenge is not None
            headers = {"authorization": ProofExchange("offer", challenge[0]).authorization(PLANTED[TOKEN])}
            async with session.get(f"{address.url}/runners/offer", headers=headers) as it:
                assert it.status == 200, "what the command tried does open the run, for who has the token"
    said = (tmp_path / "found.json").read_text()
    (own, supervisor, worker), answers = json.loads(said)
    assert not answers, "one of the variables opened something"
    planted = set(PLANTED.values())
    assert not planted & {*own.values(), *supervisor.values()}
    assert not {value for name, value in PLANTED.items() if name.startswith("LEYDEN_")} & set(worker.values())
    assert key not in said
    assert address.token not in said


@pytest.mark.parametrize("name", [name for name in PLANTED if name.startswith("LEYDEN_")])
def test_no_option_gives_a_command_leydens_own_tokens(name: str) -> None:
    """The attacker has the user give the token along."""
    with pytest.raises(UsageError, match="cannot get Leyden's own tokens"):
        CommandAgent(["true"], [name])
