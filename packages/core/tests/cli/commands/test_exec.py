"""`leyden exec`, and commands given to `leyden dev` and `leyden train`, with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from warm_process import run_leyden

from leyden.core.cli.commands.exec import read_task
from leyden.core.cli.main import run
from leyden.core.cli.options import default_name
from leyden.core.data.resources import LLM
from leyden.core.errors import UsageError
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint
from leyden.core.testing.servers.ports import free_port
from leyden.core.trainer.config import RunConfig, load_config, save_config
from leyden.core.trainer.services.dev import DevPlan, dry_run

ROOT = Path(__file__).parents[5]
EXAMPLES = ROOT / "examples"
POLICY = EXAMPLES / "calculator_langgraph/policy"
BODY = '{"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}'
ASK = f"""
import os, urllib.request
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=b'{BODY}')
urllib.request.urlopen(request).read()
"""
ASK_FOR_TASK = ASK.replace("{", "{{").replace("}", "}}")
AGENT = """
import json, os, sys, urllib.request
body = {"model": "gpt", "max_tokens": 12, "messages": [{"role": "user", "content": sys.argv[1]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=json.dumps(body).encode())
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with echo_endpoint() as found:
        yield found


def options(endpoint: Endpoint) -> list[str]:
    return ["--base-url", f"{endpoint.url}/v1", "--model", "local"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def leyden(*arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "leyden.core.cli", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, env=environment())


# --- One command


def test_the_output_is_the_commands_own_and_the_tree_goes_beside_it(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    command = [sys.executable, "-c", f"{ASK}\nprint('{{my}} answer')\nimport sys; sys.exit(3)"]
    assert run(["exec", *options(endpoint), "--", *command]) == 3
    out, err = capfd.readouterr()
    assert out == "{my} answer\n"
    assert "dev-0  failed" in err
    assert "ended with exit code 3" in " ".join(err.replace("│", "").split()), "the tree breaks lines"
    assert "upstream" in err
    (request,) = endpoint.seen
    assert json.loads(request["body"])["model"] == "local"
    assert "authorization" not in request["headers"]


def test_a_task_is_filled_in_and_rewarded(
    endpoint: Endpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reward.py").write_text("def score(task, result):\n    return float(result == task['answer'])\n")
    (tmp_path / "task.json").write_text('{"question": "2+2?", "answer": "Q 2+2?\\n{\\"question"}')
    reward = ["--reward", f"{tmp_path}/reward.py:score", "--task", f"@{tmp_path}/task.json", "--json"]
    script = "echo Q {question}; head -c 10"
    assert run(["exec", *options(endpoint), *reward, "--", "sh", "-c", script]) == 0
    out, err = capfd.readouterr()
    assert out == 'Q 2+2?\n{"question'
    recorded = json.loads(err)
    assert recorded["rollout"]["status"] == "succeeded"
    assert [s["attributes"]["leyden.reward.value"] for s in recorded["attempts"][0][1] if "reward" in s["name"]] == [1]


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 77", 77), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_commands_own(endpoint: Endpoint, script: str, code: int) -> None:
    assert run(["exec", *options(endpoint), "--", "sh", "-c", script]) == code


def test_one_that_takes_too_long_is_ended(endpoint: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["exec", *options(endpoint), "--timeout", "2", "--", "sleep", "600"]) == 124
    assert "no result within 2.0 s" in capfd.readouterr().err


TRAPS = ["sh", "-c", "trap 'echo got it; exit 7' INT; echo ready; while :; do sleep 0.02; done"]
# No shell: one that gets the signal just as it starts a command may forget it.
WAITS = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print('ready', flush=True); signal.pause()"


@pytest.mark.parametrize(("command", "code"), [(TRAPS, 7), ([sys.executable, "-c", WAITS], 130)])
def test_ctrl_c_is_passed_on(endpoint: Endpoint, command: list[str], code: int) -> None:
    process = leyden("exec", *options(endpoint), "--", *command)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ("got it\n" if code == 7 else "")
    assert "Traceback" not in err
    assert "attempt 1  failed" in err


def test_standard_input_is_handed_on_where_there_is_no_task(endpoint: Endpoint) -> None:
    process = leyden("exec", *options(endpoint), "--", "cat", stdin=subprocess.PIPE)
    out, _ = process.communicate("from outside", timeout=60)
    assert (out, process.returncode) == ("from outside", 0)


def test_a_terminal_is_lent_to_the_command(endpoint: Endpoint) -> None:
    command = [sys.executable, "-m", "leyden.core.cli", "exec", *options(endpoint), "--"]
    command += ["sh", "-c", 'echo name?; read name; echo "hello $name"']
    terminal = subprocess.Popen(
        [sys.executable, "-c", f"import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({command!r})))"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert terminal.stdout is not None
    assert terminal.stdin is not None
    assert terminal.stdout.readline() == "name?\n"
    terminal.stdin.write("Ada\n")
    terminal.stdin.flush()
    lines = [terminal.stdout.readline() for _ in range(2)]  # the terminal echoes what is typed
    assert lines == ["Ada\n", "hello Ada\n"]
    terminal.communicate(timeout=60)
    assert terminal.returncode == 0


# --- What cannot work


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "p"], "there is no command: write it after --"),
        (["--policy", "p", "--"], "there is no command: write it after --"),
        (["--policy", "p", "--", "no-such-program"], "there is no program 'no-such-program'"),
        (["--", "ls"], "give either --policy"),
        (["--policy", "p", "--base-url", "http://x/v1", "--", "ls"], "give either --policy"),
        (["--policy", "p", "--model", "m", "--", "ls"], "--model is the name of a model at an --endpoint"),
        (["--policy", "p", "--timeout", "0", "--", "ls"], "--timeout must be positive"),
        (["--policy", "p", "--task", "{question", "--", "ls"], "--task takes JSON"),
        (["--policy", "p", "ls", "-l"], "-l"),
        (["--policy", "./nowhere/policy", "--", "ls"], "nowhere/policy"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(["exec", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", '{"q": 1}', "--", "echo", "{colour}"], "the task has the keys q"),
        (["--task", '{"q": 1}', "--reward", "REWARD:raises", "--", "echo"], "ZeroDivisionError"),
        (["--reward", "REWARD:missing", "--", "echo"], "has no 'missing'"),
    ],
)
def test_what_shows_later_is_one_line_too(
    endpoint: Endpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    (tmp_path / "reward.py").write_text("def raises(task, result):\n    return 1 / 0\n")
    given = [argument.replace("REWARD", f"{tmp_path}/reward.py") for argument in arguments]
    assert run(["exec", *options(endpoint), *given]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["dev", "exec"])
def test_a_key_that_no_task_has_runs_nothing(
    endpoint: Endpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "t.jsonl").write_text('{"q": 1, "colour": "red"}\n{"q": 2}\n')
    given = ["--task", '{"q": 2}'] if command == "exec" else ["--tasks", f"{tmp_path}/t.jsonl"]
    mark = ["sh", "-c", f"touch {tmp_path}/ran", "{colour}"]
    assert run([command, *options(endpoint), *given, "--", *mark]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("leyden: the task has the keys q; the argument '{colour}' needs the key 'colour'")
    assert err.count("\n") == 1
    assert not (tmp_path / "ran").exists()


def test_tasks_are_json(tmp_path: Path) -> None:
    assert read_task('{"a": [1]}') == {"a": [1]}
    assert read_task('"a text"') == "a text"
    for bad in ("[1]", "3", f"@{tmp_path}/nowhere"):
        with pytest.raises(UsageError, match="--task"):
            read_task(bad)


# --- Commands as agents of the other commands


def test_a_command_is_tried_on_tasks(endpoint: Endpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text('{"question": "2+2?"}\n')
    arguments = ["dev", "--tasks", f"{tmp_path}/t.jsonl", *options(endpoint), "--json"]
    assert run([*arguments, "--", sys.executable, "-c", f"{ASK_FOR_TASK}\nprint('asked', '{{question}}')"]) == 0
    recorded = json.loads(capfd.readouterr().out)
    assert recorded["attempts"][0][1][-1]["attributes"]["leyden.result"] == "asked 2+2?"
    assert len(endpoint.seen) == 1


def test_a_call_goes_to_a_replica_that_can_be_reached(
    endpoint: Endpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text('{"question": "2+2?"}\n' * 4)
    gone = f"http://127.0.0.1:{free_port()}/v1"
    arguments = ["dev", "-n", "4", "--tasks", f"{tmp_path}/t.jsonl", "--endpoint", gone, *options(endpoint), "--json"]
    assert run([*arguments, "--", sys.executable, "-c", ASK_FOR_TASK]) == 0
    recorded = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [rollout["rollout"]["status"] for rollout in recorded] == ["succeeded"] * 4
    assert len(endpoint.seen) == 4


def test_a_command_is_an_agent_in_python_too(endpoint: Endpoint) -> None:
    def score(task: Any, result: str) -> int:
        return len(result)

    llm = LLM(endpoint=f"{endpoint.url}/v1", model="local")
    plan = DevPlan(resources={"main_llm": llm})
    (recorded,) = dry_run(plan, CommandAgent(["echo", "{q}"]), [{"q": "hi"}], score, show=False)
    assert recorded.rollout.status == "succeeded"
    assert [span.attributes for span in recorded.attempts[0][1]][-1]["leyden.reward.value"] == 2.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "a.py:agent", "--", "ls"], "give an agent, or a command after --, but not both"),
        (["train", "--", "ls"], "missing --tasks, --policy"),
        (["train", "--", "no-such-program"], "no-such-program"),
        (["train", "--resume", "old", "--", "ls"], "--resume takes agent and tasks from the run"),
        (["dev", "a.py:agent", "--tasks", "t", "--", "ls"], "but not both"),
        (["dev", "--tasks", "t"], "missing AGENT, or -- COMMAND"),
    ],
)
def test_an_agent_is_named_one_way(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert run(arguments) == 2
    assert says in capsys.readouterr().err


def test_a_run_keeps_its_command(tmp_path: Path) -> None:
    command = ("node", "agent.js", "{question}", "--flag", "", "ü 'quoted'")
    save_config(RunConfig(name="r", agent=command, policy="p"), tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").agent == command


def test_a_run_is_named_after_its_commands_file(tmp_path: Path) -> None:
    (tmp_path / "calc").mkdir()
    for file in ("calc/agent.js", "solve.rb"):
        (tmp_path / file).touch()
    assert default_name(("node", "--quiet", f"{tmp_path}/calc/agent.js", "{q}")).startswith("calc-")
    assert default_name(("ruby", f"{tmp_path}/solve.rb")).startswith("solve-")
    assert default_name(("my-agent", "{q}")).startswith("my-agent-")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_command_is_trained_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "What is 2 plus 3?"}\n{"question": "Multiply 4 by 5."}\n')
    (tmp_path / "reward.py").write_text("def score(task, result):\n    return float(len(result) % 3)\n")
    (tmp_path / "agent.py").write_text(AGENT)
    arguments = [
        "--tasks",
        f"{tmp_path}/tasks.jsonl",
        "--reward",
        f"{tmp_path}/reward.py:score",
        "--policy",
        str(POLICY),
    ]
    arguments += ["--tasks-per-step", "2", "--group-size", "4", "--steps", "1", "--runs", str(tmp_path), "--name", "r"]
    arguments += ["--quiet", "--", sys.executable, str(tmp_path / "agent.py"), "{question}"]
    for words in (
        ["train", *arguments],
        ["train", "--resume", "r", "--steps", "2", "--runs", str(tmp_path), "--quiet"],
    ):
        done = run_leyden(words, cwd=tmp_path, environment=environment(), timeout=140)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    report = json.loads((tmp_path / "r/report.json").read_text())
    assert report["steps"] == 2
    assert report["rollouts"] >= 16
    assert report["transitions"] > 0
