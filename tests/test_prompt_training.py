"""The agents, the local model and the baseline of the figures of trained prompts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planted import found_in, random_of, texts_below
from provider_formats import PROVIDERS, Script
from provider_servers import provider_server

from leyden.core.runner.user_code.loading import load_object
from leyden.core.testing.prompts.contract import PromptAlgorithmContract
from leyden.core.testing.servers.chat_endpoint import chat_endpoint
from leyden.core.trainer.prompt_file import read_prompts
from prompt_figures import AGENTS, ROOT, SETUPS, local_model, measures

FOLDER = ROOT / AGENTS
pytestmark = [pytest.mark.timeout(600)]

START = "You reply to {v1}, a customer abroad who asks about a measure."
GOOD = (
    f"{START} Convert the measure to the metric system. Round to one decimal. Use the unit's symbol. Begin with "
    "'Answer:'. Write only the measure."
)
REWARD = f"{FOLDER}/reward.py:measures"

score: Any = load_object(REWARD)
propose: Any = load_object(f"{FOLDER}/reflection.py:propose")


def mean(prompt: str, *, held_out: bool) -> float:
    """Return the mean reward of the local model with a prompt."""
    rows = measures.tasks(60, held_out=held_out)
    total = 0.0
    for row in rows:
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": row["question"]}]
        total += score(row, local_model.answer({"messages": messages}))[0]
    return total / len(rows)


def test_each_instruction_is_worth_a_part_of_the_reward_and_none_all_of_it() -> None:
    sentences = [f"{sentence}." for sentence in GOOD.removeprefix(START).strip(" .").split(". ")]
    assert mean(START, held_out=True) == 0
    assert mean(GOOD, held_out=True) > 0.8
    for sentence in sentences:
        assert mean(f"{START} {sentence}", held_out=True) < 0.4
        assert mean(GOOD.replace(f" {sentence}", ""), held_out=True) < mean(GOOD, held_out=True) - 0.1


def test_an_answer_learned_by_heart_helps_with_its_own_task_alone() -> None:
    row = measures.tasks(1, held_out=False)[0]
    measure = measures.MEASURE.search(row["question"])
    assert measure is not None
    prompt = f"{START} If the message has {measure[0]}, reply with Answer: {row['answer']} {row['symbol']}."
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": row["question"]}]
    assert score(row, local_model.answer({"messages": messages})) == (1.0, "the reply is as it should be")
    assert mean(prompt, held_out=True) == 0


def test_held_out_tasks_share_no_customer_and_no_question_with_training_tasks() -> None:
    training, held_out = (measures.tasks(60, held_out=which) for which in (False, True))
    for name in ("customer", "question"):
        assert not {row[name] for row in training} & {row[name] for row in held_out}


def test_the_reflection_model_answers_in_the_form_of_each_algorithm() -> None:
    complaint = "the reply has more than the measure"
    asked = f"Instructions:\n```\n{START}\n```\nFeedback: {complaint}"
    answers = [propose([{"role": "user", "content": asked}]) for _ in range(200)]
    assert all(answer.count("```") == 2 for answer in answers)
    assert sum("only the measure" in answer for answer in answers) > 80
    assert 5 < sum("{v1}" not in answer for answer in answers) < 40
    gradient = propose([{"role": "user", "content": f"## The text\n\n{START}\n\n## Rollouts\n\n{complaint}"}])
    assert gradient.startswith("What is wrong: has more than the measure")
    edit = f"## The text\n\n{START}\n\n## The criticism\n\n{gradient}\n\nBetween <new_prompt> and </new_prompt>."
    assert propose([{"role": "user", "content": edit}]).startswith("<new_prompt>\nYou ")


def leyden(folder: Path, variables: dict[str, str], *words: str) -> None:
    """Run a command of Leyden in a folder."""
    command = [sys.executable, "-m", "leyden.core.cli", *words]
    given = {**os.environ, "OPENAI_API_KEY": "sk-not-a-real-key", "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def rows(path: Path, tasks: list[dict[str, Any]]) -> str:
    """Write tasks into a file, and return its path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in tasks))
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name, setup in SETUPS.items() if setup.answers == setup.reflects == "scripted"]
)
def test_the_components_of_each_agent_are_found_and_trained(name: str, tmp_path: Path) -> None:
    """The local model answers, and a script writes new texts: the reward rises within a small budget."""
    setup = SETUPS[name]
    tasks = rows(tmp_path / "train.jsonl", measures.tasks(8, held_out=False))
    with chat_endpoint(local_model.answer) as endpoint:
        agent = [f"{FOLDER}/{setup.agent}.py:agent", "--tasks", tasks, "--endpoint", endpoint.url]
        leyden(tmp_path, {}, "prompts", *agent, "--out", "prompts.yaml")
        assert set(setup.components) <= set(read_prompts(tmp_path / "prompts.yaml").texts)
        words = ["train", *agent, "--reward", REWARD, "--prompts", "prompts.yaml", "--algorithm", "gepa"]
        settings = {"budget.rollouts": "60", "components": json.dumps(setup.components)}
        settings["reflection.function"] = f"{FOLDER}/reflection.py:propose"
        words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        leyden(tmp_path, {}, *words, "--steps", "100", "--name", "run", "--quiet")
    rewards = [
        line["reward"]
        for line in map(json.loads, (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines())
        if "reward" in line
    ]
    assert rewards[-1] > 0
    kept = read_prompts(tmp_path / "runs/run/prompts/prompts.yaml")
    assert {one.name for one in kept.changed} <= set(setup.components)


@pytest.mark.long
def test_a_provider_reflects_on_the_rollouts_of_a_program_without_a_framework(tmp_path: Path) -> None:
    """The provider's model gets the feedback of the rewards, in its own format, and its text is kept."""
    key = random_of("reflection", 40)
    setup = SETUPS["openai"]
    tasks = rows(tmp_path / "train.jsonl", measures.tasks(8, held_out=False))
    held_out = rows(tmp_path / "val.jsonl", measures.tasks(8, held_out=True))
    with chat_endpoint(local_model.answer) as endpoint, provider_server("anthropic") as server:
        server.script = Script(pieces=("This says what is expected:\n```\n", GOOD, "\n```"))
        agent = [f"{FOLDER}/{setup.agent}.py:agent", "--tasks", tasks, "--endpoint", endpoint.url]
        variables = PROVIDERS["anthropic"].variables(server.url, key)
        leyden(tmp_path, {}, "prompts", *agent, "--out", "prompts.yaml")
        words = ["train", *agent, "--val", held_out, "--reward", REWARD, "--prompts", "prompts.yaml"]
        words += ["--algorithm", "gepa", "--set", "reflection.endpoint=anthropic/claude-sonnet-4-5", "--steps", "2"]
        leyden(tmp_path, variables, *words, "--set", "reflection.max_tokens=300", "--name", "run", "--quiet")
    assert {request.body["model"] for request in server.requests} == {"claude-sonnet-4-5"}
    request = json.dumps(server.requests[0].body)
    assert server.requests[0].headers["x-api-key"] == key
    assert "the reply has more than the measure" in request
    assert "each of which must stay: {v1}" in request
    report = json.loads((tmp_path / "runs/run/report.json").read_text())
    assert report["success_before"] == 0
    assert report["success_after"] > 0.8
    assert read_prompts(tmp_path / "runs/run/prompts/prompts.yaml").texts["system"] == GOOD
    assert found_in(texts_below([tmp_path]), {"the key": key}) == []


@pytest.mark.long
class TestBestOfN(PromptAlgorithmContract):
    algorithm = f"{FOLDER}/best_of_n.py:BestOfN"
    settings = ("budget.rollouts=22",)
    budget = 22
    steps = 1
