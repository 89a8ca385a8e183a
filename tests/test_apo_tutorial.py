"""The original's tutorial of APO, in its shape: an agent that calls OpenAI itself, and a training script.

Only the import lines name `leyden.core`. A local endpoint stands in for OpenAI.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.store.open import open_store
from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint

AGENT = """
import json
import os
from typing import TypedDict, cast

from openai import OpenAI
from pydantic import BaseModel, Field

from leyden.core import Dataset, PromptTemplate, rollout


class Verdict(BaseModel):
    score: float = Field(description="0 to 1")
    reason: str


class RoomTask(TypedDict):
    id: str
    task_input: dict[str, str]
    expected_choice: str


ROOMS = {"Orion": 4, "Lyra": 10, "Vega": 6}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_rooms",
            "description": "Rooms that have enough seats.",
            "parameters": {"type": "object", "properties": {"attendees": {"type": "integer"}}},
        },
    }
]


def prompt_template_baseline() -> PromptTemplate:
    return PromptTemplate(template="A room at {time} for {attendees} people.", engine="f-string")


def grade(client: OpenAI, message: str | None, expected: str) -> float:
    verdict = client.chat.completions.parse(
        model="gpt-4.1-mini",
        messages=[{"role": "user", "content": f"Answer: {message}. Expected: {expected}. Grade the answer."}],
        response_format=Verdict,
        temperature=0.0,
    ).choices[0].message.parsed
    return verdict.score


@rollout
def room_selector(task: RoomTask, prompt_template: PromptTemplate) -> float:
    assert "LEYDEN_REFLECTION_KEY" not in os.environ
    client = OpenAI()
    messages = [
        {"role": "system", "content": "You are a scheduling assistant."},
        {"role": "user", "content": prompt_template.format(**task["task_input"])},
    ]
    first = client.chat.completions.create(
        model="gpt-4.1-nano", messages=messages, tools=TOOLS, tool_choice="auto", temperature=0.0
    ).choices[0].message
    assert not first.tool_calls
    return grade(client, first.content, task["expected_choice"])


def load_room_tasks() -> Dataset[RoomTask]:
    tasks = [json.loads(line) for line in open("room_tasks.jsonl")]
    return cast(Dataset[RoomTask], tasks)
"""
SCRIPT = """
import logging
from typing import Tuple, cast

from openai import AsyncOpenAI
from room_selector import RoomTask, load_room_tasks, prompt_template_baseline, room_selector

from leyden.core import APO, Dataset, TraceToMessages, Trainer, setup_logging


def load_train_val_dataset() -> Tuple[Dataset[RoomTask], Dataset[RoomTask]]:
    full = load_room_tasks()
    split = len(full) // 2
    train = [full[i] for i in range(split)]
    val = [full[i] for i in range(split, len(full))]
    return cast(Dataset[RoomTask], train), cast(Dataset[RoomTask], val)


def main() -> None:
    setup_logging()
    openai_client = AsyncOpenAI(CLIENT)
    algo = APO[RoomTask](
        openai_client,
        val_batch_size=10,
        gradient_batch_size=4,
        beam_width=2,
        branch_factor=2,
        beam_rounds=2,
        _poml_trace=True,
    )
    trainer = Trainer(
        algorithm=algo,
        n_runners=8,
        initial_resources={"prompt_template": prompt_template_baseline()},
        adapter=TraceToMessages(),
    )
    dataset_train, dataset_val = load_train_val_dataset()
    trainer.fit(agent=SELECTOR, train_dataset=dataset_train, val_dataset=dataset_val)
    print("best prompt:", algo.get_best_prompt().template)


if __name__ == "__main__":
    main()
"""
RULE = "Name the smallest room that has enough seats."
AGENTS_KEY, CLIENTS_KEY = "sk-the-agents-own-key", "sk-the-key-of-the-client"

pytestmark = [pytest.mark.timeout(600)]


def answer(body: dict[str, Any]) -> str:
    """Return what the provider's models answer: an agent's, a judge's, a critic's and an editor's."""
    content = body["messages"][-1]["content"]
    if "response_format" in body:
        return json.dumps({"score": float("Answer: Vega" in content), "reason": "compared"})
    if body["model"] == "gpt-4.1-nano":
        return "Vega" if RULE in content else "I cannot say."
    if body["model"] == "gpt-5-mini":
        return "The text does not say which of several rooms is wanted."
    assert body["model"] == "gpt-4.1-mini", body["model"]
    text = content.partition("## The text\n\n")[2].partition("\n\n## The criticism")[0]
    return f"<new_prompt>\n{text} {RULE}\n</new_prompt>"


@pytest.fixture
def provider() -> Generator[ChatEndpoint]:
    with chat_endpoint(answer) as server:
        yield server


def run_tutorial(
    folder: Path,
    provider: ChatEndpoint,
    client: str = "",
    agent: str = "room_selector",
    package: str = "leyden.core",
) -> "subprocess.CompletedProcess[str]":
    tasks = [
        {"id": str(n), "task_input": {"time": f"{n + 8}:00", "attendees": "5"}, "expected_choice": "Vega"}
        for n in range(8)
    ]
    (folder / "room_tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "room_selector.py").write_text(AGENT.replace("from leyden.core ", f"from {package} "))
    script = SCRIPT.replace("CLIENT", client).replace("SELECTOR", agent)
    (folder / "room_selector_apo.py").write_text(script.replace("from leyden.core ", f"from {package} "))
    return subprocess.run(
        [sys.executable, "room_selector_apo.py"],
        cwd=folder,
        env={**os.environ, "OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": AGENTS_KEY, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("client", "agent", "package"),
    [
        ("", "room_selector", "leyden.core"),
        ("", "room_selector", "leyden.core.agent_lightning"),
        (f'api_key="{CLIENTS_KEY}"', "room_selector", "leyden.core"),
        (f'api_key="{CLIENTS_KEY}"', '"room_selector.py:room_selector"', "leyden.core"),
    ],
)
async def test_the_tutorial_runs_with_its_imports_changed(
    client: str, agent: str, package: str, provider: ChatEndpoint, tmp_path: Path
) -> None:
    done = run_tutorial(tmp_path, provider, client, agent, package)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{provider.url} answers the agent" in done.stderr
    assert "_poml_trace has no effect" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["success_before"], report["success_after"]) == (2, 0.0, 1.0)
    best = (run / "prompts/prompt_template.txt").read_text()
    assert RULE in best and f"best prompt: {best}" in done.stdout

    keys = {call["body"]["model"]: call["key"] for call in provider.seen if "response_format" not in call["body"]}
    own = CLIENTS_KEY if client else AGENTS_KEY
    assert keys == {
        "gpt-4.1-nano": f"Bearer {AGENTS_KEY}",
        "gpt-5-mini": f"Bearer {own}",
        "gpt-4.1-mini": f"Bearer {own}",
    }
    assert {call["body"].get("temperature") for call in provider.seen if call["body"]["model"] == "gpt-5-mini"} == {1.0}
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "room_selector_apo.py":
            assert AGENTS_KEY.encode() not in path.read_bytes(), path
            assert CLIENTS_KEY.encode() not in path.read_bytes(), path

    store = await open_store(f"sqlite:///{run / 'store.db'}", clock=lambda: 0.0)
    try:
        rollouts = await store.query_rollouts()
        for rollout in rollouts:
            spans = (await store.query_spans(rollout.rollout_id)).items
            assert sum(semconv.CALL_ID in span.attributes for span in spans) == 2, "the agent's call and the judge's"
    finally:
        await store.close()
    calls = sum(call["body"]["model"] in ("gpt-4.1-nano", "gpt-4.1-mini") for call in provider.seen)
    edits = sum("The criticism" in str(call["body"]["messages"][-1]["content"]) for call in provider.seen)
    assert calls == 2 * len(rollouts) + edits
