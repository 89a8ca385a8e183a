"""What `leyden dev` loads at once, and what becomes of the one half when the other fails."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.core.engine.base import ModelInfo
from leyden.core.errors import AgentNotFound, PolicyError, TaskError
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine
from leyden.core.trainer.services import dev
from leyden.core.trainer.services.dev import DevPlan, dry_run

CODEC = ByteCodec()
PATIENCE = 60.0
AGENT = """
import os, pathlib, time
import httpx

here = pathlib.Path(__file__).parent
(here / "agent_is_loading").write_text(str(os.getpid()))
while not (here / "policy_is_loading").exists():
    time.sleep(0.01)
{more}

def agent(question):
    body = {{"model": "m", "messages": [{{"role": "user", "content": question}}]}}
    headers = {{"Authorization": "Bearer unused"}}
    answer = httpx.post("https://api.openai.com/v1/chat/completions", json=body, headers=headers)
    return answer.json()["choices"][0]["message"]["content"]
"""


async def written(path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (path.exists() and path.read_text()):  # a file is there before what is written to it
            await asyncio.sleep(0.01)


def policy_loader(folder: Path, fails: Exception | None = None) -> Callable[..., Any]:
    """Stands for `embedded_policy`; it is not done before the agent has begun to load."""

    @asynccontextmanager
    async def load(source: str, **_: Any) -> AsyncGenerator[ServedPolicy]:
        await written(folder / "agent_is_loading")
        if fails is not None:
            raise fails
        (folder / "policy_is_loading").touch()
        engine = ScriptedEngine(
            lambda _: ScriptedAnswer(ids=CODEC.answer("four")),
            model=ModelInfo(name="scripted", context_length=4096, vocab_size=VOCABULARY),
        )
        yield ServedPolicy(name="policy", engine=engine, codec=CODEC)
        await engine.close()

    return load


def run(folder: Path, more: str = "") -> Any:
    (folder / "agent.py").write_text(AGENT.format(more=more))
    plan = DevPlan(policy="scripted")
    return dry_run(plan, f"{folder}/agent.py:agent", [{"question": "2+2?"}], show=False)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(600)
def test_policy_and_agent_are_loaded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the other to have begun: one after the other they would never end."""
    monkeypatch.setattr(dev, "embedded_policy", policy_loader(tmp_path))
    [recorded] = run(tmp_path)
    assert recorded.rollout.status == "succeeded"
    assert recorded.attempts[0][1]


@pytest.mark.timeout(600)
def test_a_policy_that_fails_ends_the_worker_that_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "embedded_policy", policy_loader(tmp_path, PolicyError("it has no chat template")))
    with pytest.raises(PolicyError, match="it has no chat template"):
        run(tmp_path)
    assert not is_alive(int((tmp_path / "agent_is_loading").read_text()))


@pytest.mark.timeout(600)
def test_an_agent_that_fails_ends_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "embedded_policy", policy_loader(tmp_path))
    with pytest.raises(AgentNotFound, match=r"KeyError: 'MODEL_NAME' \(.*agent.py, line 9\)"):
        run(tmp_path, 'model = os.environ["MODEL_NAME"]')


@pytest.mark.parametrize("row", [{"n": 1 << 64}, {"text": "\ud800"}, {"of": object()}])
def test_a_task_that_could_not_be_kept_whole_is_refused_before_anything_starts(row: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=r"^task 2: task\."):
        dry_run(DevPlan(policy="none"), print, [{"n": 1}, row])
