"""`leyden prompts` and `--prompts`, with agents that no adapter knows, answered by an endpoint."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from leyden.core.cli.main import run
from leyden.core.data.encoding.json_line import json_line
from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint
from leyden.core.trainer.prompt_file import read_prompts

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_workers")]
AGENT = """
import httpx


def ask(path, **body):
    headers = {"Authorization": "Bearer sk-the-agents-own"}
    return httpx.post(f"https://api.openai.com/v1{path}", json={"model": "gpt-4.1-mini", **body}, headers=headers)


def agent(task):
    question = f"Question: {task['question']}\\nAnswer in one word:"
    system = {"role": "system", "content": "You know {facts}."}
    ask("/chat/completions", messages=[system, {"role": "user", "content": question}])
    ask("/responses", instructions="You check answers.", input=question)
    ask("/messages", system="You end it.", max_tokens=9, messages=[{"role": "user", "content": task["question"]}])
    ask("/completions", prompt=f"One more fact about it: {task['question']}")
    return "done"
"""
TASKS = ["Who was the first queen?", "Where is the highest hill?", "When did the long war end?"]
FOUND = {
    "system": "You know {{facts}}.",
    "system.2": "You check answers.",
    "system.3": "You end it.",
    "user": "Question: {v1}\nAnswer in one word:",
    "prompt": "One more fact about it: {v1}",
}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with echo_endpoint() as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"question": task}) + "\n" for task in TASKS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(endpoint: Endpoint, *more: str) -> list[str]:
    return ["agent.py:agent", "--tasks", "tasks.jsonl", "--endpoint", f"{endpoint.url}/v1", *more]


def test_prompts_of_all_apis_are_found_edited_and_sent(
    folder: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prompts", *arguments(endpoint)]) == 0
    shown = capsys.readouterr()
    assert "system  (system message 1, 3 calls)\n  You know {{facts}}.\n" in shown.out
    assert "5 components of 12 calls are in prompts.yaml" in shown.out
    assert "The calls name no agent" in shown.err
    edits = read_prompts("prompts.yaml")
    assert edits.texts == FOUND

    file = folder / "prompts.yaml"
    text = file.read_text().replace("  text: You check answers.\n", "  text: You check answers.\n  new_text: Check!\n")
    user = "  text: |-\n    Question: {v1}\n    Answer in one word:\n"
    assert user in text
    file.write_text(text.replace(user, f"{user}  new_text: 'Say a word on {{v1}}'\n"))
    endpoint.seen.clear()
    assert run(["dev", *arguments(endpoint, "-n", "1", "--prompts", "prompts.yaml")]) == 0
    bodies = {call["path"].removeprefix("/v1"): json.loads(call["body"]) for call in endpoint.seen}
    assert [one["content"] for one in bodies["/chat/completions"]["messages"]] == [
        "You know {facts}.",
        f"Say a word on {TASKS[0]}",
    ]
    assert bodies["/responses"]["instructions"] == "Check!"
    assert bodies["/responses"]["input"] == f"Say a word on {TASKS[0]}"
    assert bodies["/messages"]["system"] == "You end it."

    capsys.readouterr()
    assert run(["prompts", "apply", "prompts.yaml"]) == 0
    shown = capsys.readouterr()
    assert "-You check answers.\n+Check!\n\ntext to paste:\nCheck!\n" in shown.out
    assert "text to paste (where it has {v1}, keep what the agent puts there):\nSay a word on {v1}\n" in shown.out
    assert "You end it." not in shown.out
    assert run(["prompts", "apply", "prompts.yaml", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["system.2", "user"]


def test_a_command_has_prompts_too_and_one_task_is_said_to_show_little(
    folder: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    body = '{"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]}'
    code = (
        "import os, urllib.request\n"
        f"request = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', data=b'{body}')\n"
        "urllib.request.urlopen(request).read()\n"
    )
    (folder / "ask.py").write_text(code)
    options = ["--tasks", "tasks.jsonl", "-n", "1", "--endpoint", f"{endpoint.url}/v1", "--model", "m", "--json"]
    assert run(["prompts", "find", *options, "--out", "own.yaml", "--", "python", "ask.py"]) == 0
    shown = capsys.readouterr()
    assert [json.loads(line)["text"] for line in shown.out.splitlines()] == ["Be brief."]
    assert "Only one task was run" in shown.err
    edits = read_prompts("own.yaml").with_texts({"system": "Be verbose."})
    (folder / "new.yaml").write_text(f"components: [{json_line(edits.changed[0])}]")
    endpoint.seen.clear()
    command = ["--endpoint", f"{endpoint.url}/v1", "--model", "m", "--prompts", "new.yaml", "--", "python", "ask.py"]
    assert run(["exec", *command]) == 0
    assert "Be verbose." in str(endpoint.seen[0]["body"])


def test_what_cannot_work_is_one_line_before_anything_runs(
    folder: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "kept.yaml").write_text("components: []\n")
    lost = "components:\n- {name: a, role: user, text: 'Do {v1}', new_text: Do it}\n"
    (folder / "lost.yaml").write_text(lost)
    cases = {
        "kept.yaml exists, and may have new texts": ["prompts", *arguments(endpoint, "--out", "kept.yaml")],
        "missing AGENT": ["prompts", "--tasks", "tasks.jsonl", "--policy", "p"],
        "give either --policy": ["prompts", "agent.py:agent", "--tasks", "tasks.jsonl"],
        "lost.yaml: new_text of the prompt component 'a': the new text lacks the variable {v1}": [
            "dev", *arguments(endpoint, "--prompts", "lost.yaml"),
        ],
        "no.yaml cannot be read: No such file": ["prompts", "apply", "no.yaml"],
    }  # fmt: skip
    for says, given in cases.items():
        assert run(given) == 2
        shown = capsys.readouterr()
        assert says in shown.err
        assert shown.err.count("\n") == 1
    for command in (["gateway"], ["exec"]):
        assert run([*command, "--endpoint", f"{endpoint.url}/v1", "--prompts", "lost.yaml", *(
            ["--", "true"] if command == ["exec"] else []
        )]) == 2  # fmt: skip
        assert "lacks the variable" in capsys.readouterr().err
    assert not endpoint.seen


def test_an_agent_without_a_call_has_no_prompts(
    folder: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "agent.py").write_text("def agent(task):\n    raise LookupError('no')\n")
    assert run(["prompts", *arguments(endpoint)]) == 1
    shown = capsys.readouterr()
    assert "made no model call" in shown.err
    assert "3 of 3 rollouts failed" in shown.err
    assert not (folder / "prompts.yaml").exists()
