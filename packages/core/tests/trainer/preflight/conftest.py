"""A whole check of a tiny random policy: real store, gateway, engine, runner and update, in this process."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer
from leyden.core.tracing.context import Caller, set_caller
from leyden.core.trainer.agents.live import AgentThread
from leyden.core.trainer.agents.local import CheckAgents
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.preflight.report import CheckReport
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import RunAddress
from leyden.core.trainer.session import check

TEMPLATE = """{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
TASKS = [{"question": f"one and {word}?"} for word in ("two", "one", "calculator", "naive")]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random policy whose context holds 256 tokens."""
    folder = tmp_path_factory.mktemp("tiny") / "policy"
    module: Any = tiny_policy(shape=TinyShape(vocab=400, context=256)).module
    module.save_pretrained(folder)
    save_tiny_tokenizer(folder, TEMPLATE)
    return folder


async def ask(task: Any) -> str:
    """An agent that asks a model once."""
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            "https://api.openai.com/v1/chat/completions",
            headers={"authorization": "Bearer sk-not-a-real-key"},
            json={"model": "gpt", "messages": [{"role": "user", "content": task["question"]}], "max_tokens": 6},
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def even(task: Any, result: str) -> float:
    """A reward that about half of all random answers earn."""
    return float(sum(result.encode()) % 2)


@dataclass
class CheckRun:
    """Checks a run of the tiny policy; calling it changes what is given."""

    policy: Path
    runs: Path
    monkeypatch: pytest.MonkeyPatch

    def __call__(
        self,
        agent: Callable[[Any], Any] = ask,
        reward: Callable[[Any, Any], Any] = even,
        tasks: list[Any] = TASKS,
        **changes: Any,
    ) -> CheckReport:
        given: dict[str, Any] = {
            "tasks_per_step": 4,
            "group_size": 4,
            "tasks": "given",
            "policy": str(self.policy),
            **changes,
        }
        config = RunConfig(name="checked", agent="<an agent>", **given)
        folder = RunFolder.create(self.runs, config, list(tasks), {})

        @asynccontextmanager
        async def side(address: RunAddress) -> AsyncGenerator[CheckAgents]:
            ended = threading.Event()
            loaded = LoadedAgent.of(agent, reward)
            thread = AgentThread(address.machine("live"), loaded, 8, LiveProcesses("shared", loaded), ended)
            thread.start()

            async def check_agents() -> None:
                thread.check()

            try:
                yield check_agents
            finally:
                ended.set()
                await asyncio.to_thread(thread.join)

        return asyncio.run(check(folder, config, side, Display()))

    @staticmethod
    async def two_roles(task: Any) -> str:
        """An agent of a writer, in a node of a graph, and a judge."""
        set_caller(Caller(agent="writer", node="draft"))
        draft = await ask(task)
        set_caller(Caller(agent="judge"))
        await ask({"question": draft})
        return draft

    def served_by(self, engine: type[EmbeddedEngine]) -> None:
        """Let `engine` serve the policy from here on."""
        self.monkeypatch.setattr("leyden.core.engine.embedded.engine.EmbeddedEngine", engine)


@pytest.fixture
def check_run(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckRun:
    return CheckRun(policy, tmp_path, monkeypatch)
