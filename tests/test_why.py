"""64 rollouts broken in twelve ways: the run goes on, and `leyden why` names each; so it does where a run stops."""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_process import run_leyden

from leyden.core.cli.main import run
from leyden.core.trainer.rollouts.tasks import batch

ROOT = Path(__file__).parents[1]
EXAMPLE = Path("examples/calculator_langgraph")
SEED, TASKS_PER_STEP, GROUP, TASKS = 0, 8, 4, 16

AGENT = '''
import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path

from openai import AsyncOpenAI

from leyden.core import emit_reward

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-not-a-real-key", max_retries=0)


async def ask(question):
    answer = await client.chat.completions.create(
        model="gpt-4.1-mini", max_tokens=8, messages=[{"role": "user", "content": question}]
    )
    return answer.choices[0].message.content


def every_other(file):
    """0 and 1 by turns, over all processes: one byte is appended for each rollout."""
    with Path(file).open("ab") as counted:
        counted.write(b".")
        counted.flush()
        return counted.tell() % 2


class Agent:
    """Breaks as its task says."""

    async def solve(self, task):
        kind = task["kind"]
        if kind == "raises":
            raise LookupError(f"no luck in {id(task):#x}")
        if kind == "hangs":
            await asyncio.sleep(600)
        if kind == "kills its process":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "leaves at once":
            os._exit(3)
        if kind == "crashes in native code":
            ctypes.string_at(0)
        if kind == "exits":
            sys.exit("enough of this")
        if kind == "imports":
            import a_library_that_is_not_there
        if kind == "asks too much":
            await ask("x " * 5000)
        if kind == "asks nothing":
            emit_reward(1.0)
            return "without a call"
        said = await ask(task["question"])
        if kind == "works":
            emit_reward(every_other(task["file"]))
        if kind == "always the same":
            emit_reward(0.5)
        return said


agent = Agent()
'''

ADAPTER = '''
from leyden.core import Adapter


class BuggyAdapter(Adapter):
    """Runs `Agent` objects, and has a fault of its own."""

    name = "buggy"

    def supports(self, agent):
        return type(agent).__name__ == "Agent"

    def fresh(self, agent):
        return agent

    def check(self, agent, task):
        if task["kind"] == "meets a fault of the adapter":
            task["kind"]["no such thing"]

    async def run(self, agent, task, resources):
        return await agent.solve(task)

    def instrument(self):
        pass

    def uninstrument(self):
        pass
'''

BROKEN = {
    "raises": "LookupError: no luck in 0x",
    "hangs": "no result within 15.0 s",
    "kills its process": "the agent's process was killed by SIGKILL",
    "leaves at once": "the agent's process ended with exit code 3",
    "crashes in native code": "the agent's process was killed by SIGSEGV",
    "exits": "SystemExit: enough of this",
    "imports": "ModuleNotFoundError: No module named 'a_library_that_is_not_there'",
    "asks too much": "maximum context length",
    "asks nothing": "no call: Leyden saw no model call of the agent",
    "gets no reward": "no reward: the rollout succeeded but has no reward",
    "always the same": "no spread: all rollouts of the task got the same reward",
    "meets a fault of the adapter": "adapter 'buggy' cannot check the task: TypeError: ",
}

pytestmark = [pytest.mark.timeout(600)]


def kinds() -> list[str]:
    """A kind for each row: those of the first batch are all broken, and half of the second one's work."""
    rows = [{"row": row} for row in range(TASKS)]
    drawn = [task["row"] for index in (0, 1) for _, task in batch(rows, index, TASKS_PER_STEP, SEED)]
    given = dict(zip(drawn, [*BROKEN, *["works"] * (TASKS - len(BROKEN))], strict=True))
    return [given[row] for row in range(TASKS)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agent, tasks, and an adapter that is installed where PYTHONPATH says."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "agent.py").write_text(AGENT)
    rows = [
        {"kind": kind, "question": "What is 3 plus 4?", "file": str(folder / f"count-{number}")}
        for number, kind in enumerate(kinds())
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    installed = folder / "installed" / "buggy-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: buggy\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[leyden.adapters]\nbuggy = buggy_adapter:BuggyAdapter\n")
    (folder / "installed" / "buggy_adapter.py").write_text(ADAPTER)
    return folder


@pytest.fixture(scope="module")
def broken(files: Path) -> Path:
    """The folder of the run."""
    variables = {
        **os.environ,
        **{"OMP_NUM_THREADS": "1", "COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false"},
        "PYTHONPATH": str(files / "installed"),
    }
    arguments = [
        *("train", f"{files}/agent.py:agent", "--tasks", f"{files}/tasks.jsonl", "--no-check"),
        *("--policy", f"{EXAMPLE}/policy", "--learning-rate", "1e-4", "--timeout", "15", "--seed", str(SEED)),
        *("--tasks-per-step", str(TASKS_PER_STEP), "--group-size", str(GROUP), "--steps", "1"),
        *("--isolation", "process", "--runs", str(files / "runs"), "--name", "broken"),
    ]
    done = run_leyden(arguments, cwd=ROOT, environment=variables, timeout=200)
    assert done.returncode == 0, done.stderr
    assert f"why rollouts and calls were not trained: leyden why broken --runs {files}/runs" in done.stdout
    return files / "runs" / "broken"


@pytest.fixture
def why(broken: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`leyden why` on the run, with further arguments; returns what it prints."""

    def ask(*arguments: str) -> str:
        capfd.readouterr()
        assert run(["why", "broken", *arguments, "--runs", str(broken.parent)]) == 0
        return capfd.readouterr().out

    return ask


def test_all_ways_are_named(why: Callable[..., str]) -> None:
    said = why()
    assert "64 training rollouts" in said
    for kind, words in BROKEN.items():
        assert words in said, (kind, said)
    assert "refused: the gateway refused the request" in said


def test_nothing_is_silent_and_nothing_is_counted_twice(broken: Path, why: Callable[..., str]) -> None:
    found = json.loads(why("--json"))
    report = json.loads((broken / "report.json").read_text())
    left_out = {one["reason"]: one["count"] for one in found["rollouts_left_out"]}
    assert found["rollouts"] == found["rollouts_trained"] + sum(left_out.values()) == 64
    assert found["calls"] == found["calls_trained"] + sum(one["count"] for one in found["calls_left_out"])
    assert (found["calls_trained"], found["rollouts_trained"]) == (report["transitions"], report["rollouts_trained"])
    assert left_out == report["rollouts_left_out"]
    assert report["failed_rollouts"] == sum(one["count"] for one in report["failures"])


def test_one_rollout_of_each_way_says_which(why: Callable[..., str], capfd: pytest.CaptureFixture[str]) -> None:
    for one in json.loads(why("--json"))["rollouts_left_out"]:
        assert f"not trained: {one['reason']}" in why(one["example"])
        assert run(one["command"].split()[1:]) == 0
        assert one["example"] in capfd.readouterr().out


def test_exports_have_the_same_reasons(broken: Path, why: Callable[..., str], tmp_path: Path) -> None:
    found = json.loads(why("--json"))
    given = ["--format", "jsonl", "--to", str(tmp_path / "rows"), "--runs", str(broken.parent), "--quiet"]
    assert run(["export", "broken", *given]) == 0
    rows, spans = (
        [json.loads(line) for line in (tmp_path / "rows" / f"{table}.jsonl").read_text().splitlines()]
        for table in ("rollouts", "spans")
    )
    counted = Counter(row["not_trained"] for row in rows if row["not_trained"])
    assert counted == {one["reason"]: one["count"] for one in found["rollouts_left_out"]}
    assert sum(bool(row["trained_in"]) for row in rows) == found["rollouts_trained"]
    calls = Counter(row["not_trained"] for row in spans if row["not_trained"])
    assert calls == {one["reason"]: one["count"] for one in found["calls_left_out"]}
    killed = next(row for row in rows if "SIGKILL" in (row["not_trained_detail"] or ""))
    assert (killed["not_trained"], killed["attempts"]) == ("worker lost", 2)
    assert json.loads(killed["remarks"])[0] == (
        "attempt 1 failed: the agent's process was killed by SIGKILL; the rollout was run again"
    )


@pytest.mark.parametrize(
    ("body", "words"), [("raise ZeroDivisionError('by zero')", "by zero"), ("return float('nan')", "nan")]
)
def test_a_reward_that_stops_the_run_is_named_afterwards(
    body: str, words: str, tmp_path: Path, leyden: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text("def agent(task):\n    return task['question']\n")
    (tmp_path / "reward.py").write_text(f"def score(task, result):\n    {body}\n")
    arguments = (
        *("train", f"{tmp_path}/agent.py:agent", "--tasks", f"{EXAMPLE}/train.jsonl"),
        *("--reward", f"{tmp_path}/reward.py:score", "--policy", f"{EXAMPLE}/policy", "--tasks-per-step", "2"),
        *("--group-size", "2", "--runs", str(tmp_path / "runs"), "--name", "stopped"),
    )
    done = leyden(*arguments)
    assert done.returncode == 2
    capfd.readouterr()
    assert run(["why", "stopped", "--runs", str(tmp_path / "runs")]) == 0
    said = capfd.readouterr().out
    assert "Run stopped (ended before its first step)" in said
    assert "reward function failed: the reward function raised, or returned something that is not" in said
    assert words in said
    again = leyden(*arguments)
    assert (again.returncode, "exists" in again.stderr) == (2, False), "the name is free"
    assert run(["train", "--resume", "stopped", "--runs", str(tmp_path / "runs")]) == 2
    assert "ended before its first step" in capfd.readouterr().err
