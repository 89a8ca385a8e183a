"""`leyden train --engine vllm`, whole, on a real vLLM server on this machine's CPU, killed after the first step.

`LEYDEN_VLLM` names the python of an environment that has vLLM (docs/vllm.md).
"""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import safetensors.torch
from warm_process import Running

from check_record import Record, calls_recorded_wrongly, engine_log, read_record
from leyden.core.engine.vllm.options import PYTHON
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.store.open import open_store
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.servers.ports import free_port

ROOT = Path(__file__).parents[1]
TOKENIZER = ROOT / "examples/calculator_langgraph/policy"
STEPS, TASKS, GROUP = 3, 2, 4
ROUNDING = 1e-4
AGENT = """
from openai import AsyncOpenAI

LONG = "Count every word of this sentence and of all that came before it. " * 10

async def agent(task):
    client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-of-the-user")
    messages = [{"role": "user", "content": f"{task['question']} {LONG}"}]
    for _ in range(2):  # the second call begins with the first, which the server's prefix cache knows
        answer = await client.chat.completions.create(model="gpt", messages=messages, max_tokens=24)
        text = answer.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    await client.close()
    return text

def score(task, text):
    return float(len(text) % 2)
"""

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no python that has vLLM"),
]


@dataclass
class Killed:
    """A run whose server was killed once, and what its page said of that server meanwhile."""

    folder: Path
    policy: Path
    up: list[float] = field(default_factory=list[float])
    page: str = ""
    """As it was last, while the server answered."""


@pytest.fixture(scope="module")
def run(start: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("vllm")
    policy = folder / "policy"
    shape = TinyShape(vocab=673, hidden=64, head_dim=32, context=640)
    cast(Any, tiny_policy(0, shape).module).save_pretrained(policy)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TOKENIZER / name, policy / name)
    (folder / "agent.py").write_text(AGENT)
    rows = [json.dumps({"id": f"t{n}", "question": f"What is {n} plus {n}?"}) for n in range(8)]
    (folder / "train.jsonl").write_text("\n".join(rows))
    port = free_port()
    training = start(
        *("train", f"{folder}/agent.py:agent", "--tasks", f"{folder}/train.jsonl"),
        *("--reward", f"{folder}/agent.py:score", "--policy", str(policy)),
        *("--engine", "vllm", "--set", 'lora={"rank": 4}', "--learning-rate", "1e-2", "--timeout", "900"),
        *("--steps", str(STEPS), "--tasks-per-step", str(TASKS), "--group-size", str(GROUP)),
        *("--keep-checkpoints", "9", "--engine-log", "--port", str(port)),
        *("--runs", str(folder), "--name", "killed"),
    )
    seen = Killed(folder / "killed", policy)
    try:
        _kill_after_first_step(training, seen, port)
    finally:
        done = training.ended(60)
    assert done.returncode == 0, done.stderr + done.stdout
    return seen


def _kill_after_first_step(training: Running, seen: Killed, port: int) -> None:
    """Kill the server when the first step is taken and the next one's calls are being answered; watch to the end."""
    killed = False
    while training.returncode is None:
        time.sleep(0.2)
        page = _page(port)
        found = re.search(r'^leyden_up\{part="engine",policy="policy",replica="server"\} (\S+)', page, re.MULTILINE)
        if found is not None:
            seen.up.append(float(found[1]))
            seen.page = page if float(found[1]) else seen.page
        if (
            not killed
            and "leyden_run_step 1.0" in page
            and re.search("^leyden_gateway_running [1-9]", page, re.MULTILINE)
        ):
            os.kill(_server(seen.policy), signal.SIGKILL)
            killed = True


def _page(port: int) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return answer.read().decode()
    except (URLError, OSError):
        return ""


def _server(policy: Path) -> int:
    """Process id of the server, which gives itself another name: what was started by the process that ends it."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if (
                b"vllm.entrypoints.openai.api_server" in words
                and str(policy).encode() in words
                and b"elsewhere" in words
            ):
                return int((entry / f"task/{entry.name}/children").read_text().split()[0])
        except OSError:  # gone meanwhile
            continue
    raise AssertionError("there is no server")


def steps(run: Killed) -> list[dict[str, Any]]:
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "reward" in line]


def model_of(run: Killed, version: int) -> PolicyModel:
    model = PolicyModel.load(run.policy)
    if version:
        model.adapt(LoraOptions(rank=4))
        files: Any = safetensors.torch
        model.load_weights(files.load_file(run.folder / f"checkpoints/step-{version:08d}/model.safetensors"))
    return model


def test_served_is_trained_after_every_step(run: Killed) -> None:
    assert [line["step"] for line in steps(run)] == [1, 2, 3]
    assert all(line["served_trained_gap"] < ROUNDING for line in steps(run))
    assert all(line["importance_ratio_deviation"] < 1e-3 for line in steps(run))
    log = (run.folder / "vllm-policy.log").read_text()
    assert log.count("Application startup complete") == 2


async def test_no_rollout_is_lost_and_none_is_run_twice(run: Killed) -> None:
    store = await open_store(f"sqlite:///{run.folder / 'store.db'}")
    rollouts = list(await store.query_rollouts())
    await store.close()
    assert len(rollouts) >= STEPS * TASKS * GROUP
    assert {rollout.status for rollout in rollouts} == {"succeeded"}
    assert {cast(Any, rollout).attempt.sequence_id for rollout in rollouts} == {1}
    record, log = await read_record(run.folder), engine_log(run.folder)
    assert calls_recorded_wrongly(record, log) == []
    assert len(record.calls) == 2 * len(rollouts)


async def test_what_agents_were_answered_is_of_the_version_that_is_recorded(run: Killed) -> None:
    """First calls are computed afresh, second ones with the cached prefix of the first."""
    record: Record = await read_record(run.folder)
    versions = {version for call in record.transitions for version, _ in call.versions}
    assert versions == {0, 1, 2}
    models = {version: model_of(run, version) for version in versions}
    apart = 0.0
    for call in record.transitions:
        ids = [*call.prompt_ids, *call.response_ids]
        true = {version: score(model, ids)[len(call.prompt_ids) - 1 :] for version, model in models.items()}
        drew = [version for version, count in call.versions for _ in range(count)]
        told = list(call.logprobs)
        assert max(abs(true[v][n] - told[n]) for n, v in enumerate(drew)) < ROUNDING
        apart = max(apart, *(abs(true[0][n] - true[v][n]) for n, v in enumerate(drew)))
    assert apart > 100 * ROUNDING, "versions that are all alike prove nothing"


def test_its_page_told_of_the_death_and_of_vllms_own_numbers(run: Killed) -> None:
    assert 0.0 in run.up
    assert run.up[run.up.index(0.0) :].count(1.0) > 0
    hits = re.search(r'^vllm:prefix_cache_hits_total\{.*replica="server"\} (\S+)', run.page, re.MULTILINE)
    assert hits is not None and float(hits[1]) > 0
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert re.search(rf'^{name}\{{.*policy="policy",replica="server"\}} ', run.page, re.MULTILINE)
