"""Runs that train prompts and no weights: killed, rolled back, listed, exported, and refused in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from planted import found_in, random_of, texts_below
from provider_formats import PROVIDERS, Script
from provider_servers import provider_server

import leyden.core as agl
from leyden.core.cli import main as cli
from leyden.core.data import semconv
from leyden.core.testing.prompts.contract import AGENT, PromptAlgorithmContract, run_folder
from leyden.core.testing.prompts.hints import SENTENCES
from leyden.core.testing.prompts.scripted import ScriptedPrompts, ScriptedPromptsConfig
from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint
from leyden.core.trainer.prompt_file import read_prompts

ROOT = Path(__file__).parents[1]
SCRIPTED = "leyden.core.testing.prompts.scripted:ScriptedPrompts"
CANDIDATES = [["a {question}", "aaa {question}"], ["aa {question}", "aaaaa\n{question}\x1b[31m"], ["b"]]
HINTED = [[f"{{question}} {sentence}"] for sentence in SENTENCES.values()]
BEST = "aaaaa\n{question}\x1b[31m"

pytestmark = [pytest.mark.timeout(600)]


def worth(body: dict[str, Any]) -> str:
    return f"{body['messages'][0]['content'].count('a') / 10}"


@pytest.mark.long
class TestScriptedPrompts(PromptAlgorithmContract):
    algorithm = SCRIPTED
    settings = (f"candidates={json.dumps(HINTED)}",)
    reflects = False
    budget = None


@pytest.fixture
def endpoint() -> Generator[ChatEndpoint]:
    with chat_endpoint(worth) as server:
        yield server


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    monkeypatch.setenv("COLUMNS", "200")
    Path("agent.py").write_text(AGENT)
    rows = [json.dumps({"question": f"question {number}"}) + "\n" for number in range(3)]
    Path("tasks.jsonl").write_text("".join(rows))
    Path("prompt.txt").write_text("{question}")
    return tmp_path


def arguments(url: str, *more: str) -> list[str]:
    return [
        *("train", "agent.py:agent", "--endpoint", url, "--tasks", "tasks.jsonl", "--val", "tasks.jsonl"),
        *("--algorithm", SCRIPTED, "--prompt", "prompt=prompt.txt", "--tasks-per-step", "2"),
        *("--set", f"candidates={json.dumps(CANDIDATES)}", "--steps", "3", "--name", "run", *more),
    ]


def printed(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    assert cli.run(list(command)) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def test_versions_of_prompts_are_listed_shown_compared_exported_and_rolled_back(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, *arguments(endpoint.url))
    assert "prompts: runs/run/prompts" in said
    assert not [word for word in ("weights", "policy", "transitions", "tokens trained") if word in said], said
    assert Path("runs/run/prompts/prompt.txt").read_text() == BEST
    assert {call["key"] for call in endpoint.seen} == {"Bearer sk-not-a-real-key"}
    versions = [json.loads(line) for line in printed(capsys, "models", "list", "run", "--json").splitlines()]
    assert [one["prompts"]["prompt"]["template"] for one in versions] == ["{question}", CANDIDATES[0][1], BEST, BEST]
    ids = [one["resources_id"] for one in versions]
    assert len(set(ids)) == 3 and ids[2] == ids[3]
    listed = printed(capsys, "models", "list", "run")
    assert ids[1] in listed and "weights" not in listed
    shown = printed(capsys, "models", "show", "run:2")
    assert "prompt prompt (f-string):\naaaaa\n{question}\\x1b[31m" in shown and "\x1b" not in shown
    compared = printed(capsys, "models", "compare", "run:1", "run:2")
    assert "-aaa {question}" in compared and "+aaaaa" in compared
    printed(capsys, "models", "export", "run", "1", "out")
    assert [path.name for path in Path("out").iterdir()] == ["prompt.txt"]
    assert Path("out/prompt.txt").read_text() == "aaa {question}"
    why = printed(capsys, "why", "run")
    assert f"model calls, to {endpoint.url}" in why
    assert "policy" not in why and "another model" not in why
    printed(capsys, "models", "rollback", "run", "2")
    assert not Path("runs/run/prompts").exists()
    before = len(endpoint.seen)
    printed(capsys, "train", "--resume", "run", "--quiet")
    assert Path("runs/run/prompts/prompt.txt").read_text() == BEST
    assert len(endpoint.seen) == before + 2 * 2 + 3, "only the third step and the last evaluation were repeated"


def test_rollouts_note_the_version_that_they_ran_with(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, *arguments(endpoint.url, "--quiet"))
    printed(capsys, "export", "run", "--format", "jsonl", "--what", "rollouts", "--to", "rows", "--quiet")
    rows = [json.loads(line) for line in Path("rows/rollouts.jsonl").read_text().splitlines()]
    assert all(row["resources_version"] == 1 for row in rows)
    training = [row for row in rows if row["mode"] == "train"]
    assert all(row["resources_id"] in row["rollout_id"] for row in training)
    held_out = [row for row in rows if row["mode"] == "val"]
    assert len({row["resources_id"] for row in held_out}) == 2
    assert {row["trained_in"] is not None for row in training} == {True}


def test_settings_may_come_from_a_run_file(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, *arguments(endpoint.url, "--quiet"))
    text = Path("runs/run/config.yaml").read_text()
    Path("run.yaml").write_text(text.replace("{question}", "a{question}", 1).replace("name: run", "name: again", 1))
    printed(capsys, "train", "--config", "run.yaml", "--quiet")
    first = json.loads(Path("runs/again/versions.jsonl").read_text().splitlines()[0])
    assert first["prompts"]["prompt"] == {
        "type": "prompt_template",
        "template": "a{question}",
        "engine": "f-string",
    }
    assert first["endpoint"] == endpoint.url


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--algorithm", "lightning_rl"), "lightning_rl trains the weights of a policy, and an endpoint has none"),
        (("--policy", "policy"), "scripted_prompts trains no weights: a --policy or an --endpoint answers the agent"),
        (("--device", "cuda"), "no policy is served or trained in a run with an --endpoint; remove --device"),
        (("--group-size", "4"), "remove --group-size"),
        (("--temperature", "0.5"), "remove --temperature"),
        (("--max-tokens", "50"), "remove --max-tokens"),
        (("--prompt", "a/b=prompt.txt"), "the name 'a/b' of a prompt or another resource must match"),
        (("--prompt", "other"), "--prompt takes name=file, each name once, not 'other'"),
        (("--prompt", "other=missing.txt"), "prompt missing.txt cannot be read: No such file or directory"),
        (("--api-key-env", "NOT_SET_ANYWHERE"), "--api-key-env NOT_SET_ANYWHERE: this environment variable is not"),
        (("--algorithm", "gepa"), "--tasks-per-step has no effect: gepa chooses its tasks itself; remove it"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    change: tuple[str, ...], says: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = printed(capsys, *arguments("http://127.0.0.1:9/v1", "--quiet", *change), code=2)
    assert says in error
    assert error.count("\n") == 1, error
    assert not Path("runs/run").exists()


def test_without_an_endpoint_the_option_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("train", "agent.py:agent", "--tasks", "tasks.jsonl", "--algorithm", SCRIPTED)
    assert "missing --endpoint" in printed(capsys, *command, code=2)
    assert "--model belongs to an --endpoint" in printed(capsys, *command, "--model", "m", code=2)


def test_an_endpoint_that_refuses_its_key_fails_the_check(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = printed(capsys, *arguments("http://127.0.0.1:9/v1", "--quiet"), code=1)
    assert "the check found that this run would not learn" in error
    assert "rollouts: 6 of 6 failed" in error


def a_function(task: dict[str, str], llm: agl.LLM, prompt_template: agl.PromptTemplate) -> float:
    from openai import OpenAI

    with OpenAI(base_url=llm.get_base_url(), api_key="unused", max_retries=0) as client:
        content = prompt_template.format(question=task["question"])
        answer = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": content}])
    return float(answer.choices[0].message.content or 0)


@pytest.mark.parametrize("engine", ["f-string", "jinja"])
def test_trainer_takes_prompt_and_endpoint_among_its_resources(
    engine: Any, endpoint: ChatEndpoint, tmp_path: Path
) -> None:
    def jinja(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}") if engine == "jinja" else text

    config = ScriptedPromptsConfig(candidates=[[jinja("aaa {question}")]], prompt="asked")
    trainer = agl.Trainer(
        algorithm=ScriptedPrompts(config),
        initial_resources={
            "main_llm": agl.LLM(endpoint=endpoint.url, model="model-of-the-endpoint", api_key="sk-given-in-python"),
            "asked": agl.PromptTemplate(template=jinja("{question}"), engine=engine),
        },
        steps=1,
        runs=tmp_path,
        name="live",
        quiet=True,
    )
    tasks = [{"question": "why"}, {"question": "how"}]
    report = trainer.fit(agl.rollout(a_function), train_dataset=tasks, val_dataset=tasks[:1])
    assert (report.success_before, report.success_after) == (0.0, 0.3)
    assert (tmp_path / "live/prompts" / ("asked.j2" if engine == "jinja" else "asked.txt")).exists()
    assert {call["key"] for call in endpoint.seen} == {"Bearer sk-given-in-python"}
    assert {call["body"]["model"] for call in endpoint.seen} == {"model-of-the-endpoint"}
    for path in (tmp_path / "live").rglob("*"):
        assert not path.is_file() or b"sk-given-in-python" not in path.read_bytes(), path


def test_trainer_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    trainer = agl.Trainer(algorithm=ScriptedPrompts(ScriptedPromptsConfig()))
    with pytest.raises(agl.UsageError, match="scripted_prompts trains no weights: Trainer\\(initial_resources="):
        trainer.fit(agl.rollout(a_function), train_dataset=[{"question": "why"}])


EDITING = """
from leyden.core import PromptComponent, PromptEdits
from leyden.core.testing.prompts.scripted import ScriptedPrompts, ScriptedPromptsConfig

OWN = PromptEdits(components=(PromptComponent(name="user", role="user", text="ask {v1}"),))


class Editing(ScriptedPrompts):
    name = "editing"
    Config = ScriptedPromptsConfig

    async def _take_step(self, context):
        edits = OWN.with_texts({"user": "a" * (context.step + 1) + " {v1}"})
        await context.publish(resources={"edits": edits})
        results = await context.run_tasks(self.requests(context))
        context.log({"reward": results[0].score})
        await context.checkpoint()

    def requests(self, context):
        from leyden.core.algorithm.task_rollouts import RolloutRequest

        return [RolloutRequest(row=row) for row in context.next_rows()]
"""


def test_prompt_edits_of_a_run_are_shown_compared_exported_and_applied(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("editing.py").write_text(EDITING)
    Path("prompt.txt").write_text("ask {question}")
    printed(
        capsys,
        *("train", "agent.py:agent", "--endpoint", endpoint.url, "--tasks", "tasks.jsonl", "--val", "tasks.jsonl"),
        *("--algorithm", "editing.py:Editing", "--prompt", "prompt=prompt.txt", "--tasks-per-step", "2"),
        *("--steps", "2", "--name", "run", "--no-check", "--quiet"),
    )
    versions = [json.loads(line) for line in printed(capsys, "models", "list", "run", "--json").splitlines()]
    texts = [
        [one["new_text"] for one in version["edits"].get("edits", {"components": []})["components"]]
        for version in versions
    ]
    assert texts == [[], ["a {v1}"], ["aa {v1}"]]
    assert len({version["resources_id"] for version in versions}) == 3
    assert "prompt component user (user message 1):\naa {v1}" in printed(capsys, "models", "show", "run:2")
    compared = printed(capsys, "models", "compare", "run:1", "run:2")
    assert "-a {v1}" in compared and "+aa {v1}" in compared

    kept = Path("runs/run/prompts/prompts.yaml")
    assert read_prompts(kept).texts == {"user": "aa {v1}"}
    printed(capsys, "models", "export", "run", "1", "out")
    assert sorted(path.name for path in Path("out").iterdir()) == ["prompt.txt", "prompts.yaml"]
    assert read_prompts("out/prompts.yaml").texts == {"user": "a {v1}"}

    applied = printed(capsys, "prompts", "apply", "run")
    assert "prompt prompt of version run:2 is the one that the run began with" in applied
    assert "-ask {v1}\n+aa {v1}" in applied and f"--prompts {kept}\n" in applied
    applied = printed(capsys, "prompts", "apply", "run:1")
    assert "+a {v1}" in applied
    assert "--prompts exported/prompts.yaml (written by `leyden models export run 1 exported`)" in applied
    lines = printed(capsys, "prompts", "apply", "run:1", "--json").splitlines()
    assert [json.loads(line)["new_text"] for line in lines] == ["a {v1}"]
    assert "run 'run' has no version '9'" in printed(capsys, "prompts", "apply", "run:9", code=2)
    assert "no run 'walk'" in printed(capsys, "prompts", "apply", "walk", code=2)

    given = ("prompts", "try", "agent.py:agent", "--endpoint", endpoint.url, "--tasks", "tasks.jsonl", "--json")
    trial = json.loads(printed(capsys, *given, "--a", "run:1", "--b", "run:2"))
    assert (trial["reward"]["a"], trial["reward"]["b"]) == (pytest.approx(0.1), pytest.approx(0.2))
    trial = json.loads(
        printed(capsys, *given, "--a", "prompt=prompt.txt", "--b", "prompt=prompt.txt", "--b", "out/prompts.yaml")
    )
    assert trial["reward"]["ties"] == 3


def test_templates_of_a_run_are_applied_as_what_changed_since_its_start(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, *arguments(endpoint.url, "--quiet"))
    applied = printed(capsys, "prompts", "apply", "run:1")
    assert "-{question}\n+aaa {question}\n" in applied
    assert "text to paste, where the agent has its template prompt:\naaa {question}\n" in applied
    assert "changes no prompt" not in applied
    line = json.loads(printed(capsys, "prompts", "apply", "run:1", "--json"))
    assert line == {"name": "prompt", "text": "{question}", "new_text": "aaa {question}"}


BOTH = """
from leyden.core import LightningRL, PromptTemplate

class Both(LightningRL):
    name = "both"

    async def run(self, context):
        publish = context.publish

        async def publish_both(models, *, resources=None):
            prompt = PromptTemplate(template=f"{context.step + 1} {{question}}")
            return await publish(models, resources={"prompt": prompt})

        context.publish = publish_both
        await super().run(context)
"""
POLICED = """
import json
from urllib.request import Request, urlopen

import leyden.core as agl


@agl.rollout
def agent(task, llm, prompt_template):
    body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": prompt_template.format(**task)}]}
    request = Request(f"{llm.get_base_url()}/chat/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urlopen(request) as response:
        answer = json.load(response)
    return float(len(answer["choices"][0]["message"]["content"] or "") % 7)
"""


@pytest.mark.long
def test_weights_and_prompts_are_one_version(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("both.py").write_text(BOTH)
    Path("policed.py").write_text(POLICED)
    policy = str(ROOT / "examples/calculator_langgraph/policy")
    printed(
        capsys,
        *("train", "policed.py:agent", "--policy", policy, "--tasks", "tasks.jsonl", "--algorithm", "both.py:Both"),
        *("--prompt", "prompt=prompt.txt", "--tasks-per-step", "2", "--group-size", "4", "--steps", "2"),
        *("--name", "both", "--no-check", "--quiet"),
    )
    versions = [json.loads(line) for line in printed(capsys, "models", "list", "both", "--json").splitlines()]
    texts = [one["prompts"]["prompt"]["template"] for one in versions]
    assert texts == ["{question}", "1 {question}", "2 {question}"]
    printed(capsys, "export", "both", "--format", "jsonl", "--what", "rollouts", "--to", "rows", "--quiet")
    rows = [json.loads(line) for line in Path("rows/rollouts.jsonl").read_text().splitlines()]
    ran_with = {row["rollout_id"].split("-")[1]: row["resources_id"] for row in rows}
    assert ran_with == {"v0": versions[0]["resources_id"], "v1": versions[1]["resources_id"]}
    printed(capsys, "models", "rollback", "both", "1")
    printed(capsys, "models", "export", "both", "1", "out")
    assert Path("out/prompts/prompt.txt").read_text() == "1 {question}"
    assert Path("out/model.safetensors").exists()
    printed(capsys, "train", "--resume", "both", "--quiet")
    assert Path("runs/both/prompts/prompt.txt").read_text() == "2 {question}"


def test_a_policy_answers_and_is_not_trained(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It also reflects, as `own`. The agents' own sampling applies: every call of these agents has temperature 0."""
    Path("policed.py").write_text(POLICED.replace('"messages"', '"temperature": 0, "max_tokens": 8, "messages"'))
    policy = str(ROOT / "examples/calculator_langgraph/policy")
    rest = ("--tasks", "tasks.jsonl", "--prompt", "prompt=prompt.txt", "--steps", "2", "--name", "own")
    search = ("--algorithm", "gepa", "--set", "reflection.max_tokens=16", "--set", "perfect_score=9")
    printed(capsys, "train", "policed.py:agent", "--policy", policy, *rest, *search, "--quiet", "--threads", "1")
    report = json.loads(Path("runs/own/report.json").read_text())
    assert report["endpoint"] == policy
    assert report["search"]["reflections"] >= 1
    assert not Path("runs/own/policy").exists()
    why = printed(capsys, "why", "own")
    assert f"model calls, to {policy}" in why
    assert "Calls without an answer" not in why
    printed(capsys, "export", "own", "--format", "jsonl", "--what", "spans", "--to", "rows", "--quiet")
    rows = [json.loads(line) for line in Path("rows/spans.jsonl").read_text().splitlines()]
    attributes = [
        json.loads(row["attributes"]) if isinstance(row["attributes"], str) else row["attributes"] for row in rows
    ]
    used = [one[semconv.SAMPLING_USED] for one in attributes if semconv.SAMPLING_USED in one]
    assert used
    assert {json.loads(one)["temperature"] for one in used} == {0}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--endpoint", "http://127.0.0.1:9/v1"), "a --policy or an --endpoint answers the agent, not both"),
        (("--policy", "b=policy"), "one policy answers the agent: give one, without a name"),
        (("--group-size", "4"), "remove --group-size"),
    ],
)
def test_what_cannot_answer_beside_a_policy_is_refused(
    more: tuple[str, ...], says: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = () if "b=policy" in more else ("--policy", "policy")
    rest = ("--tasks", "tasks.jsonl", "--prompt", "prompt=prompt.txt", "--algorithm", "gepa")
    assert says in printed(capsys, "train", "agent.py:agent", *given, *rest, *more, code=2)


def test_a_check_without_a_policy_says_nothing_about_weights(
    endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, "check", *arguments(endpoint.url)[1:])
    assert "6 rollouts" in said
    names = ("options", "rollouts", "isolation", "calls", "rewards", "spread")
    assert all(name in said for name in names)
    assert not [word for word in ("memory", "gradient", "policy", "weights", "log-prob") if word in said], said


@pytest.mark.parametrize("algorithm", ["apo", "gepa"])
def test_a_check_needs_no_held_out_tasks(
    algorithm: str, endpoint: ChatEndpoint, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("check", "agent.py:agent", "--endpoint", endpoint.url, "--tasks", "tasks.jsonl")
    settings = ("--prompt", "prompt=prompt.txt", "--algorithm", algorithm, "--set", "validation=val")
    said = printed(capsys, *command, *settings)
    assert "2 rollouts" in said
    assert {call["body"]["model"] for call in endpoint.seen} == {"m"}, "no reflection is paid for"


@pytest.mark.long
def test_a_providers_model_answers_and_no_torch_is_loaded(tmp_path: Path) -> None:
    key = random_of("the key of an endpoint")
    with run_folder(tmp_path / "run") as folder, provider_server("anthropic") as server:
        server.script = Script(pieces=("0.", "5"))
        (folder / "prompt.txt").write_text("{question}")
        command = [
            *(sys.executable, "train.py", *arguments("anthropic/claude-sonnet-4-5"), "--quiet"),
            *("--set", "candidates=[]", "--steps", "1"),
        ]
        variables = {**os.environ, **PROVIDERS["anthropic"].variables(server.url, key), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "loaded.json").read_text()) == []
    assert {request.body["model"] for request in server.requests} == {"claude-sonnet-4-5"}
    report = json.loads((folder / "runs/run/report.json").read_text())
    assert (report["endpoint"], report["success_after"]) == ("anthropic/claude-sonnet-4-5", 0.5)
    printed = {"output": done.stdout.encode(), "errors": done.stderr.encode()}
    assert found_in(texts_below([tmp_path]) | printed, {"the key": key}) == []
