"""What a user gives with an agent by import strings: its input, hooks, and which of its calls are trained."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI

import leyden.core as agl
from leyden.core.trainer.run_folder.folder import is_free

EXAMPLE = Path("examples/calculator_langgraph")

AGENT = """
from openai import AsyncOpenAI
from leyden.core import operation

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-not-a-real-key", max_retries=0)

async def ask(stage, text):
    with operation(stage):
        messages = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(model="gpt-4.1-mini", max_tokens=6, messages=messages)
    return answer.choices[0].message.content or "nothing"

async def agent(text):
    assert isinstance(text, str), text
    return await ask("check it", await ask("draft", text) + await ask("draft nothing", text))
"""

GIVEN = """
import itertools
from pathlib import Path
from leyden.core import Hook

turns = itertools.count()

def make(row):
    return f"What is {row.pop('sum')}?"

def make_wrong(row):
    return row["question"]

def score(row, result):
    assert set(row) == {"sum"}, row
    return next(turns) % 2

def parts(row, result):
    return {"even": next(turns) % 2, "long": 4.0}

def says_something(span, above):
    assert [one.name for one in above] in (["draft"], ["draft nothing"]), above
    return above[0].name == "draft"

class Notes(Hook):
    def __init__(self):
        self.seen = {}

    def note(self, rollout, moment):
        self.seen.setdefault(rollout.rollout_id, []).append(moment)

    async def on_rollout_start(self, *, agent, runner, rollout):
        self.note(rollout, "start")

    async def on_trace_start(self, *, agent, runner, tracer, rollout):
        self.note(rollout, "trace")

    async def on_trace_end(self, *, agent, runner, tracer, rollout):
        self.note(rollout, "traced")

    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        self.note(rollout, "end")
        trajectory = await runner.source.adapter.collect_trajectory(runner.store, rollout.attempt)
        moments = ",".join(self.seen[rollout.rollout_id])
        with (Path(__file__).parent / "notes").open("a") as notes:
            notes.write(f"{moments} {len(trajectory.transitions)} {trajectory.reward}\\n")
"""

pytestmark = pytest.mark.timeout(600)


def run(leyden: Callable[..., Any], folder: Path, *more: str) -> Any:
    (folder / "agent.py").write_text(AGENT)
    (folder / "given.py").write_text(GIVEN)
    (folder / "tasks.jsonl").write_text(json.dumps({"sum": "3 plus 4"}) + "\n")
    return leyden(
        *("train", f"{folder}/agent.py:agent", "--tasks", f"{folder}/tasks.jsonl", "--steps", "1"),
        *("--reward", f"{folder}/given.py:score", "--policy", f"{EXAMPLE}/policy", "--learning-rate", "1e-4"),
        *("--tasks-per-step", "1", "--group-size", "8", "--runs", str(folder / "runs"), "--name", "given", *more),
    )


def test_input_hooks_and_selection_reach_the_processes_they_belong_to(
    leyden: Callable[..., Any], tmp_path: Path
) -> None:
    given = f"{tmp_path}/given.py"
    done = run(
        *(leyden, tmp_path, "--input", f"{given}:make", "--hook", f"{given}:Notes", "--span-match", "^draft"),
        *("--predicate", f"{given}:says_something", "--attribute-match", "leyden.policy.name=policy"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "runs/given/report.json").read_text())
    assert (report["steps"], report["failed_rollouts"], report["rollouts"]) == (1, 0, 8)
    assert report["transitions"] == 8
    assert report["excluded_calls"] == {"not selected": 16}
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert [(moments, calls) for moments, calls, _ in notes] == [("start,trace,traced,end", "3")] * 8
    assert sorted(reward for _, _, reward in notes) == ["0.0"] * 4 + ["1.0"] * 4
    config = yaml.safe_load((tmp_path / "runs/given/config.yaml").read_text())
    assert (config["input"], config["hooks"], config["span_match"]) == (f"{given}:make", [f"{given}:Notes"], "^draft")
    assert config["predicate"] == f"{given}:says_something"
    assert config["attribute_match"] == {"leyden.policy.name": "policy"}


def test_the_dimensions_of_the_reward_are_weighted(leyden: Callable[..., Any], tmp_path: Path) -> None:
    given = f"{tmp_path}/given.py"
    weights = ("--reward-weight", "even=0.5", "--reward-weight", "long=0.25")
    done = run(leyden, tmp_path, "--input", f"{given}:make", "--reward", f"{given}:parts", *weights)
    assert done.returncode == 0, done.stderr
    (step,) = [json.loads(line) for line in (tmp_path / "runs/given/metrics.jsonl").read_text().splitlines()]
    assert step["reward"] == pytest.approx(1.25)


@pytest.mark.long
def test_the_reward_of_a_live_agent_is_weighted_too(tmp_path: Path) -> None:
    turns = itertools.count()
    client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-not-a-real-key", max_retries=0)

    async def agent(task: dict[str, str]) -> str | None:
        messages: Any = [{"role": "user", "content": task["sum"]}]
        answer = await client.chat.completions.create(model="gpt-4.1-mini", max_tokens=6, messages=messages)
        return answer.choices[0].message.content

    def parts(row: dict[str, str], result: str | None) -> dict[str, float]:
        return {"even": next(turns) % 2, "long": 4.0}

    trainer = agl.Trainer(
        policy=EXAMPLE / "policy",
        reward_weights={"even": 0.5, "long": 0.25},
        name="live",
        steps=1,
        tasks_per_step=1,
        group_size=8,
        runs=tmp_path,
        quiet=True,
    )
    trainer.fit(agent, [{"sum": "3 plus 4"}], reward=parts)
    (step,) = [json.loads(line) for line in (tmp_path / "live/metrics.jsonl").read_text().splitlines()]
    assert step["reward"] == pytest.approx(1.25)


def test_a_weight_for_a_dimension_that_is_not_there_stops_the_run(leyden: Callable[..., Any], tmp_path: Path) -> None:
    given = f"{tmp_path}/given.py"
    weights = ("--reward-weight", "even=0.5", "--reward-weight", "lnog=0.25")
    done = run(leyden, tmp_path, "--input", f"{given}:make", "--reward", f"{given}:parts", *weights)
    assert done.returncode != 0
    assert "there are weights for even, lnog: 'lnog' has a weight, but is no dimension" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--input", "{given}:make_wrong", "--input make_wrong raised KeyError: 'question'"),
        ("--input", "{given}:score", "--input score(row, result) cannot be called with one task"),
        ("--hook", "{given}:score", "given.py:score is of type function, not a Hook"),
        ("--span-match", "(", "span_match '(' is not a regular expression"),
        ("--attribute-match", "nameless", "--attribute-match takes attribute=regex"),
        ("--reward-weight", "long=much", "--reward-weight takes dimension=number"),
        ("--predicate", "{given}:make", "make cannot be called as predicate(span, above)"),
    ],
)
def test_what_cannot_work_is_one_clear_line_and_leaves_no_run(
    leyden: Callable[..., Any], tmp_path: Path, option: str, value: str, said: str
) -> None:
    fits = ("--input", f"{tmp_path}/given.py:make") if option == "--predicate" else ()
    done = run(leyden, tmp_path, option, value.format(given=f"{tmp_path}/given.py"), *fits)
    assert done.returncode == 2
    assert said in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("leyden: ")]) == 1
    assert "Traceback" not in done.stderr
    folder = tmp_path / "runs/given"
    assert not folder.exists() or (value == "{given}:make_wrong" and is_free(folder))  # rollouts had begun
