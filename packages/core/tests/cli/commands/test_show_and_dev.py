"""`leyden dev` and `leyden show` on real rollouts, answered by an OpenAI-compatible endpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leyden.core.cli.main import run
from leyden.core.data.resources import LLM
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint
from leyden.core.trainer.trainer import Trainer

LOADED_BY_WORKERS = ("openai.resources",)
pytestmark = pytest.mark.usefixtures("quick_workers")

AGENT = '''
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-the-agents-own", max_retries=0)


async def agent(task):
    """Asks once."""
    answer = await client.chat.completions.create(
        model="gpt-4.1-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    return answer.choices[0].message.content
'''


PLAIN = """
import httpx


def agent(task):
    body = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": task["question"]}]}
    answer = httpx.post("https://api.openai.com/v1/chat/completions", json=body, headers={"Authorization": "Bearer sk"})
    return answer.json()["choices"][0]["message"]["content"]
"""
"""The same without OpenAI's library, which takes seconds to import."""


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with chat_endpoint("four") as found:
        yield found


def test_a_dry_run_against_an_endpoint_shows_every_span(
    endpoint: ChatEndpoint,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, seen = endpoint.url, endpoint.seen
    monkeypatch.setenv("MY_KEY", "sk-of-the-endpoint")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "reward.py").write_text("def score(task, result):\n    return result == 'four'\n")
    (tmp_path / "t.jsonl").write_text('{"question": "2+2?"}\n{"question": "not asked"}\n')
    arguments = ["dev", f"{tmp_path}/agent.py:agent", "--tasks", f"{tmp_path}/t.jsonl", "-n", "1"]
    arguments += ["--reward", f"{tmp_path}/reward.py:score", "--endpoint", url, "--model", "local"]
    assert run([*arguments, "--api-key-env", "MY_KEY"]) == 0
    shown = capfd.readouterr().out
    assert "dev-0  succeeded" in shown
    assert "9 → 1 tokens  upstream" in shown
    assert "reward 1.0" in shown
    assert "not asked" not in shown
    (request,) = seen
    assert request["body"]["model"] == "local"
    assert request["key"] == "Bearer sk-of-the-endpoint"


def test_a_failed_rollout_makes_the_exit_code_1(
    endpoint: ChatEndpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = endpoint.url
    (tmp_path / "agent.py").write_text("def agent(task):\n    raise LookupError('no luck today')\n")
    (tmp_path / "t.jsonl").write_text('{"question": "2+2?"}\n')
    arguments = ["dev", f"{tmp_path}/agent.py:agent", "--tasks", f"{tmp_path}/t.jsonl", "--endpoint", url, "--json"]
    assert run([*arguments, "--model", "local"]) == 1
    (line,) = capfd.readouterr().out.splitlines()
    assert "no luck today" in json.loads(line)["attempts"][0][0]["metadata"]["error"]["message"]


GIVEN = """
from leyden.core import Hook

def make(row):
    return {"question": f"What is {row['sum']}?"}

def score(row, result):
    return float(row == {"sum": "2+2"})

class Says(Hook):
    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        print(f"{rollout.rollout_id} left {len(spans)} spans")
"""


def test_the_last_line_says_what_to_give_for_a_missing_key(
    endpoint: ChatEndpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = 'AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-the-agents-own", max_retries=0)'
    inside = AGENT.replace(f"client = {made}\n\n\n", "").replace("await client.", "await AsyncOpenAI().")
    (tmp_path / "agent.py").write_text(inside)
    (tmp_path / "t.jsonl").write_text('{"question": "2+2?"}\n')
    arguments = ["dev", f"{tmp_path}/agent.py:agent", "--tasks", f"{tmp_path}/t.jsonl"]
    assert run([*arguments, "--endpoint", endpoint.url, "--model", "local"]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("leyden: 1 of 1 rollouts failed: 1 × OpenAIError: ")
    assert last.endswith(
        "; if Leyden answers the agent's calls, any value works, such as OPENAI_API_KEY=unused: it is not sent to a "
        "provider"
    )


def test_a_dry_run_takes_an_input_and_hooks(
    endpoint: ChatEndpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url, seen = endpoint.url, endpoint.seen
    for name, text in (("agent.py", PLAIN), ("given.py", GIVEN), ("t.jsonl", '{"sum": "2+2"}\n')):
        (tmp_path / name).write_text(text)
    arguments = ["dev", f"{tmp_path}/agent.py:agent", "--tasks", f"{tmp_path}/t.jsonl", "--endpoint", url]
    arguments += ["--model", "local", "--input", f"{tmp_path}/given.py:make", "--hook", f"{tmp_path}/given.py:Says"]
    assert run([*arguments, "--reward", f"{tmp_path}/given.py:score"]) == 0
    shown = capfd.readouterr()
    assert "reward 1.0" in shown.out
    assert "dev-0 left 3 spans" in shown.out + shown.err
    assert [request["body"]["messages"][0]["content"] for request in seen] == ["What is 2+2?"]


def says_it_again(task: Any) -> Any:
    return task["question"]


def ask_for(row: Any) -> Any:
    return {"question": row["sum"] + "?"}


def is_the_question(row: Any, result: Any) -> float:
    return float(result == row["sum"] + "?")


@pytest.mark.parametrize("agent", [says_it_again, CommandAgent(["echo", "{question}"])])
def test_live_agents_and_commands_take_them_as_objects(agent: Any, tmp_path: Path) -> None:
    seen: list[Any] = []

    class Notes(Hook):
        async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
            seen.append(rollout.input)

    trainer = Trainer(
        initial_resources={"main_llm": LLM(endpoint="http://127.0.0.1:9", model="none")},
        input=ask_for,
        hooks=[Notes, Notes()],
        quiet=True,
    )
    (recorded,) = trainer.dev(agent, [{"sum": "2+2"}], reward=is_the_question)
    assert recorded.rollout.status == "succeeded"
    assert seen == [{"sum": "2+2"}] * 2
    assert any(span.attributes.get("leyden.reward.value") == 1.0 for _, spans in recorded.attempts for span in spans)
