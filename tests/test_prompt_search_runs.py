"""A search with GEPA that begins with a file of prompts: what a person sees of it, and what is kept."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import leyden.core as agl
from leyden.core.cli import main as cli
from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint
from leyden.core.trainer.prompt_file import read_prompts, write_prompts

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quick_workers")]
pytest.importorskip("gepa")

AGENT = """
import httpx


def agent(task):
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": task["question"]}]
    response = httpx.post("https://api.openai.com/v1/chat/completions", json={"model": "m", "messages": messages})
    return response.json()["choices"][0]["message"]["content"]
"""
REWARD = """
def score(task, result):
    return float(result), f"it is worth {result}"
"""
REFLECT = '''
import re

CALLS = []


def reflect(messages):
    """Add a good line, and in every second call a bad one, if a good one is there."""
    text = re.search(r"```\\n(.*?)\\n```", messages[0]["content"], re.S)[1]
    CALLS.append(text)
    is_bad = "zealous" in text and len(CALLS) % 2 == 0
    return f"```\\n{text}\\n{'Be lax.' if is_bad else 'Be zealous.'}\\n```"
'''
EDITS = agl.PromptEdits(components=(agl.PromptComponent(name="system", role="system", text="Answer."),))
BUDGET = 40


def worth(body: dict[str, Any]) -> str:
    """The more zealous the system prompt, the better; some tasks are easier."""
    system, question = (message["content"] for message in body["messages"])
    return str(min(10, 2 * system.count("zealous") + int(question[-1]) % 3) / 10)


@pytest.fixture
def endpoint() -> Generator[ChatEndpoint]:
    with chat_endpoint(worth) as server:
        yield server


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in (("agent", AGENT), ("reward", REWARD), ("reflect", REFLECT)):
        Path(f"{name}.py").write_text(text)
    Path("tasks.jsonl").write_text("".join(json.dumps({"question": f"What is {n}"}) + "\n" for n in range(6)))
    Path("val.jsonl").write_text("".join(json.dumps({"question": f"What is {n}"}) + "\n" for n in range(2)))
    write_prompts("prompts.yaml", EDITS)
    return tmp_path


def arguments(url: str, *more: str) -> list[str]:
    return [
        *("train", "agent.py:agent", "--endpoint", url, "--tasks", "tasks.jsonl", "--val", "val.jsonl"),
        *("--reward", "reward.py:score", "--algorithm", "gepa", "--prompts", "prompts.yaml", "--steps", "3"),
        *("--set", "reflection.function=reflect.py:reflect", "--set", f"budget.rollouts={BUDGET}"),
        *("--set", "budget.agent_price=[1000, 0]", "--name", "run", *more),
    ]


def printed(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    assert cli.run(list(command)) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def test_a_search_shows_its_progress_and_its_result_and_all_of_it_is_kept(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments(endpoint.url, "--tracker", "tensorboard")) == 0
    said = capsys.readouterr()
    report = json.loads(Path("runs/run/report.json").read_text())
    found = json.loads(printed(capsys, "prompts", "tree", "run", "--json"))
    best = found["candidates"][found["best"]]
    text = best["texts"]["system"]
    assert "Be zealous." in text

    # progress: a line for each step
    line = next(line for line in said.err.splitlines() if line.startswith("step   3/3"))
    spent = int(found["spent"]["rollouts"])
    assert f"best {best['score']:.3f}  {len(found['candidates'])} candidates  {spent} of {BUDGET} rollouts" in line
    assert f"{10 * spent:,} tokens  ${9 * spent / 1000:,.4g}" in line

    # the closing table, the report and the files
    assert "spent by the search" in said.out and f"{spent} of {BUDGET} rollouts" in said.out
    assert "the search ended: all 3 steps were taken" in said.out
    assert "prompt system:\n  Answer.\n  Be zealous." in said.out and "\n  +Be zealous." in said.out
    assert report["search"]["ended"] == "all 3 steps were taken"
    assert report["search"]["best_score"] == best["score"] and report["search"]["spent"] == found["spent"]
    assert report["prompts"]["system"]["text"] == text and report["prompts"]["system"]["start"] == "Answer."
    assert Path("runs/run/reward_curve.png").read_bytes().startswith(b"\x89PNG")
    assert read_prompts("runs/run/prompts/prompts.yaml") == EDITS.with_texts({"system": text})

    # lineage and scores come from the rollouts in the store
    assert spent == sum(line["rollouts"] for line in read("runs/run/metrics.jsonl") if "rollouts" in line)
    printed(capsys, "export", "run", "--format", "jsonl", "--to", "out", "--quiet")
    rollouts = {row["rollout_id"]: row for row in read("out/rollouts.jsonl")}
    exported = read("out/candidates.jsonl")
    assert [json.loads(row["texts"]) for row in exported] == [one["texts"] for one in found["candidates"]]
    assert [row["score"] for row in exported] == [one["score"] for one in found["candidates"]]
    assert [row["number"] for row in exported if row["best"]] == [found["best"]]
    for row, one in zip(exported, found["candidates"], strict=True):
        assert json.loads(row["rollouts"]) == one["rollouts"] and row["rejected"] == (one["rejected"] or None)
        for key, score in one["scores"].items():
            own = [
                each["reward"]
                for each in rollouts.values()
                if each["resources_id"] == one["resources_id"]
                and each["mode"] == "train"
                and json.loads(each["input"])["question"].endswith(key.removeprefix("train/"))
            ]
            assert score in own
        if one["parents"]:
            parent = found["candidates"][one["parents"][0]]
            assert {rollouts[each]["resources_id"] for each in one["rollouts"]} == {parent["resources_id"]}
    rejected = [one for one in found["candidates"] if one["rejected"]]
    assert rejected, "the reflection function writes a bad line, too"

    # a person's way through it
    tree = printed(capsys, "prompts", "tree", "run")
    assert f"{len(rejected)} of {len(found['candidates'])} candidates were rejected" in tree
    shown = printed(capsys, "prompts", "tree", "run", "--candidate", str(best["number"]))
    rollout = re.search(r"leyden show run (\S+)", shown)
    assert rollout is not None
    assert f"{rollout[1]}  succeeded" in printed(capsys, "show", "run", rollout[1])
    assert f"{spent} of {BUDGET}" in printed(capsys, "show", "run")
    assert "Be zealous." in printed(capsys, "models", "show", "run")

    # the kept prompts are where the next run, or a dry run, begins
    kept = ("--prompts", "runs/run/prompts/prompts.yaml")
    before = len(endpoint.seen)
    dry = ("dev", "agent.py:agent", "--tasks", "val.jsonl", "--endpoint", endpoint.url, "-n", "1", *kept)
    printed(capsys, *dry)
    [call] = endpoint.seen[before:]
    assert call["body"]["messages"][0]["content"] == text


def test_prompts_may_come_from_a_run_file_and_from_python(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "agent": "agent.py:agent",
        "tasks": "tasks.jsonl",
        "reward": "reward.py:score",
        "algorithm": "gepa",
        "algorithm_config": {"reflection": {"function": "reflect.py:reflect"}},
        "prompt_edits": {"prompts": {"components": [{"name": "system", "role": "system", "text": "Answer."}]}},
        "steps": 1,
    }
    Path("run.yaml").write_text(json.dumps(settings))
    printed(capsys, "train", "--config", "run.yaml", "--endpoint", endpoint.url, "--name", "filed", "--quiet")
    assert json.loads(Path("runs/filed/report.json").read_text())["prompts"].keys() == {"system"}
    llm = agl.LLM(endpoint=endpoint.url, model="")
    algorithm = agl.GEPA(agl.GEPAConfig(reflection=agl.ModelOptions(function="reflect.py:reflect")))
    trainer = agl.Trainer(
        algorithm=algorithm, initial_resources={"own": EDITS, "main_llm": llm}, steps=1, name="python", quiet=True
    )
    report = trainer.fit("agent.py:agent", [{"question": f"What is {n}"} for n in range(6)], reward="reward.py:score")
    assert report.search is not None and report.search.candidates > 1
    assert report.prompts["system"].text == "Answer.\nBe zealous."
    assert read_prompts("runs/python/prompts/prompts.yaml").texts == {"system": "Answer.\nBe zealous."}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--prompts", "missing.yaml"), "missing.yaml cannot be read: No such file"),
        (("--prompts", "val.jsonl"), "val.jsonl is not YAML"),
        (("--prompt", "prompts=reward.py"), "a prompt template and prompt edits are both called 'prompts'"),
        (("--set", 'components=["other"]'), "no prompt is called 'other'; the run has system"),
    ],
)
def test_prompts_that_cannot_be_used_are_one_line(
    change: tuple[str, ...], says: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = printed(capsys, *arguments("http://127.0.0.1:9/v1", "--no-check", "--quiet", *change), code=2)
    assert says in error and error.count("\n") == 1


@pytest.mark.long
def test_the_tree_of_a_killed_run_shows_what_was_tried_until_then(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def answer(body: dict[str, Any]) -> str:
        calls.append("call")
        if len(calls) == 24:
            process.kill()
        return worth(body)

    with chat_endpoint(answer) as server:
        command = [sys.executable, "-m", "leyden.core.cli", *arguments(server.url, "--quiet", "--concurrency", "1")]
        with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            process.wait(timeout=200)
        assert process.returncode != 0
        said = printed(capsys, "prompts", "tree", "run")
        assert "stopped, after" in said and "continue with: leyden train --resume run" in said
        known = json.loads(printed(capsys, "prompts", "tree", "run", "--json"))
        assert known["candidates"][0]["scores"] and known["spent"]["rollouts"] > 0
        printed(capsys, "train", "--resume", "run", "--quiet")
    after = json.loads(printed(capsys, "prompts", "tree", "run", "--json"))
    assert after["state"] == "finished"
    finished = [one for one in known["candidates"] if one["step"] <= known["step"]]
    assert [one["texts"] for one in after["candidates"][: len(finished)]] == [one["texts"] for one in finished]


def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
