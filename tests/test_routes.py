"""Routes, frozen policies and the ways an update and a record may wait, through `leyden train`."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import found_in, random_of, texts_below
from provider_formats import PROVIDERS
from provider_servers import provider_server

from leyden.core.data import semconv
from leyden.core.store.open import open_store

EXAMPLE = Path("examples/calculator_langgraph")

AGENT = """
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-not-a-real-key", max_retries=0)

async def ask(model, question):
    messages = [{"role": "user", "content": question}]
    answer = await client.chat.completions.create(model=model, max_tokens=6, messages=messages)
    return answer.choices[0].message.content

async def agent(task):
    drafted = await ask("gpt-4.1-mini", task["question"])
    return [drafted, await ask("judge-1", drafted or "nothing")]
"""

TEAM = """
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

model = ChatOpenAI(model="gpt-4.1-mini", api_key="sk-not-a-real-key", max_tokens=6, max_retries=0)
graph = StateGraph(MessagesState)
for name in ("writer", "critic", "editor"):
    graph.add_node(name, create_agent(model, name=name))
graph.add_edge(START, "writer")
graph.add_edge("writer", "critic")
graph.add_edge("critic", "editor")
graph.add_edge("editor", END)
agent = graph.compile(name="team")
"""

REWARD = """
import itertools

calls = itertools.count()

def score(task, result):
    return next(calls) % 2
"""

pytestmark = pytest.mark.timeout(600)


def run(leyden: Callable[..., Any], folder: Path, *more: str, agent: str = AGENT) -> Any:
    (folder / "agent.py").write_text(agent)
    (folder / "reward.py").write_text(REWARD)
    (folder / "tasks.jsonl").write_text(json.dumps({"question": "What is 3 plus 4?"}) + "\n")
    return leyden(
        *("train", f"{folder}/agent.py:agent", "--tasks", f"{folder}/tasks.jsonl", "--steps", "2"),
        *("--reward", f"{folder}/reward.py:score", "--policy", f"{EXAMPLE}/policy", "--learning-rate", "1e-4"),
        *("--tasks-per-step", "1", "--group-size", "8", "--runs", str(folder / "runs"), "--name", "routed", *more),
    )


@pytest.mark.long
def test_a_route_sends_calls_to_a_frozen_policy_that_never_learns(leyden: Callable[..., Any], tmp_path: Path) -> None:
    done = run(
        *(leyden, tmp_path, "--route", "model=judge*,to=judge", "--frozen", f"judge={EXAMPLE}/policy"),
        *("--update", "drain", "--record-within", "1.5"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "runs" / "routed" / "report.json").read_text())
    assert (report["steps"], report["failed_rollouts"], report["empty_rollouts"]) == (2, 0, 0)
    assert report["transitions"] == report["rollouts"] == 16
    assert report["excluded_calls"] == {"frozen policy": 16}


@pytest.mark.long
async def test_a_route_sends_a_judges_calls_to_a_provider(
    leyden: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = random_of("a judge's key")
    with provider_server("anthropic") as judge:
        for name, value in PROVIDERS["anthropic"].variables(judge.url, key).items():
            monkeypatch.setenv(name, value)
        done = run(leyden, tmp_path, "--route", "model=judge*,to=anthropic/claude-sonnet-4-5")
        assert done.returncode == 0, done.stderr
        assert [request.body["model"] for request in judge.requests] == ["claude-sonnet-4-5"] * 16
        assert {request.headers["x-api-key"] for request in judge.requests} == {key}
    report = json.loads((tmp_path / "runs" / "routed" / "report.json").read_text())
    assert (report["steps"], report["failed_rollouts"], report["empty_rollouts"]) == (2, 0, 0)
    assert report["transitions"] == report["rollouts"] == 16
    assert report["excluded_calls"] == {"answered by an upstream": 16}
    printed = {"output": done.stdout.encode(), "errors": done.stderr.encode()}
    assert found_in(texts_below([tmp_path]) | printed, {"the judge's key": key}) == []


@pytest.mark.long
async def test_each_agent_of_a_team_has_the_policy_that_its_route_says(
    leyden: Callable[..., Any], tmp_path: Path
) -> None:
    frozen = ("--frozen", f"first={EXAMPLE}/policy", "--frozen", f"second={EXAMPLE}/policy")
    routes = ("--route", "agent=critic,to=first", "--route", "agent=edit*,to=second")
    done = run(leyden, tmp_path, *frozen, *routes, "--agent-match", "writer|critic", agent=TEAM)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "runs" / "routed" / "report.json").read_text())
    assert (report["steps"], report["failed_rollouts"]) == (2, 0)
    assert report["transitions"] == report["rollouts"] == 16
    assert report["excluded_calls"] == {"frozen policy": 32}
    store = await open_store(f"sqlite:///{tmp_path / 'runs' / 'routed' / 'store.db'}")
    try:
        spans = [
            span
            for rollout in await store.query_rollouts()
            for span in (await store.query_spans(rollout.rollout_id)).items
            if semconv.CALL_ID in span.attributes
        ]
    finally:
        await store.close()
    answered = Counter((span.attributes[semconv.AGENT_NAME], span.attributes[semconv.POLICY]) for span in spans)
    assert answered == {("writer", "policy"): 16, ("critic", "first"): 16, ("editor", "second"): 16}
    versions = {(s.attributes[semconv.POLICY], s.attributes[semconv.POLICY_VERSION]) for s in spans}
    assert versions == {("policy", 0), ("policy", 1), ("first", 0), ("second", 0)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--route", "agent=judge,to=elsewhere"), "elsewhere"),
        (("--route", "agnet=judge,to=provider"), "agnet"),
        (("--route", "agent=judge,to=acme/model"), "--route to=acme/model: LiteLLM has no provider 'acme'"),
        (("--route", "agent=judge,to=anthropic/x"), "--route to=anthropic/x needs the environment variable ANTHROPIC_"),
        (("--frozen", "provider=x"), "provider"),
        (("--frozen", "nameless"), "name=policy"),
        (("--update", "later"), "swap or drain"),
        (("--record-within", "3"), "--record-within must be at most 2"),
    ],
)
def test_bad_routes_are_one_clear_line(
    leyden: Callable[..., Any],
    tmp_path: Path,
    options: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    done = run(leyden, tmp_path, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs" / "routed").exists()
