"""Tasks on the command line and in run files, from sources of each format."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import leyden.core as agl
from leyden.core.cli import main as cli
from leyden.core.errors import UsageError
from leyden.core.trainer import launch

pa: Any = pyarrow
pq: Any = parquet
AGENT = "def agent(task):\n    return task['question']\n\ndef score(task, result):\n    return 1.0\n"


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(AGENT)
    Path("t.csv").write_text("question,answer\nx,1\ny,2\n")
    pq.write_table(pa.table({"question": ["x", "y"], "answer": [1, 2]}), "t.parquet")
    Path("data").mkdir()
    pq.write_table(pa.table({"question": ["x"], "answer": [1]}), "data/test.parquet")


def begun(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Any, Any, Any]:
    """Return configuration, tasks and held-out sets of the run that a command line begins."""
    found: list[tuple[Any, Any, Any]] = []

    def begin(runs: Any, config: Any, tasks: Any, held_out: Any, *_: Any, **__: Any) -> int:
        found.append((config, tasks, held_out))
        raise UsageError("stop here")

    monkeypatch.setattr(launch, "begin", begin)
    assert cli.run(["train", "a.py:agent", "--reward", "a.py:score", "--policy", "p", "--name", "n", *words]) == 2
    return found[0]


def test_training_and_held_out_tasks_of_several_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--tasks", "t.csv", "--val", "t.parquet", "--val", "hf:./data:test")
    config, tasks, held_out = begun(monkeypatch, *words)
    assert tasks == [{"question": "x", "answer": "1"}, {"question": "y", "answer": "2"}]
    assert held_out["t"] == [{"question": "x", "answer": 1}, {"question": "y", "answer": 2}]
    assert held_out["data-test"] == [{"question": "x", "answer": 1}]
    assert [one.source for one in config.held_out] == ["t.parquet", "hf:./data:test"]
    assert config.tasks == "t.csv"


def test_a_run_file_names_sources_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.yaml").write_text("tasks: t.parquet\nheld_out:\n  - {name: easy, source: 'hf:./data:test'}\n")
    _, tasks, held_out = begun(monkeypatch, "--config", "run.yaml")
    assert [task["answer"] for task in tasks] == [1, 2]
    assert held_out == {"easy": [{"question": "x", "answer": 1}]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "--tasks", "bad.csv"), "bad.csv, line 3: 1 value, but the header has 2"),
        (("train", "--tasks", "t.csv", "--val", "hf:./data"), "held-out hf:./data: name its split"),
        (("train", "--tasks", "hf:./data:dev"), "there is no split 'dev'; the dataset has test"),
        (("check", "--tasks", "none.parquet"), "task file none.parquet does not exist"),
        (("dev", "--tasks", "hf:"), "hf:: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"),
        (("prompts", "--tasks", "none.csv"), "task file none.csv does not exist"),
    ],
)
def test_a_source_that_cannot_be_read_ends_the_command_with_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.csv").write_text("question,answer\nx,1\ny\n")
    command, *options = words
    reward = () if command == "prompts" else ("--reward", "a.py:score")
    assert cli.run([command, "a.py:agent", "--policy", "p", *reward, *options]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.integration
def test_the_trainer_takes_a_source_in_place_of_rows() -> None:
    Path("b.py").write_text("def agent(task):\n    assert task['answer'] in ('1', '2')\n    return 1.0\n")
    llm = agl.LLM(endpoint="http://127.0.0.1:9/v1", model="m")
    trainer = agl.Trainer(n_workers=1, initial_resources={"main_llm": llm}, quiet=True)
    results = trainer.dev("b.py:agent", dev_dataset="t.csv", reward="a.py:score")
    assert [result.rollout.status for result in results] == ["succeeded", "succeeded"]
