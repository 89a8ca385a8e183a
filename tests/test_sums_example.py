"""The example with the LCEL chain: its tasks, its reward, and the chain itself on the scripted engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_files import load

EXAMPLE = Path(__file__).parents[1] / "examples" / "sums_lcel"
TASKS, REWARD = load(EXAMPLE, "make_tasks"), load(EXAMPLE, "reward")


def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def numbers(row: dict[str, Any]) -> frozenset[int]:
    return frozenset(int(number) for number in REWARD.NUMBER.findall(row["question"]))


def test_the_agent_knows_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8")
    assert "leyden" not in source.lower()
    assert "https://api.openai.com/v1" in source
    assert "agent = prompt | model | StrOutputParser()" in source


def test_no_pair_of_numbers_is_trained_and_held_out() -> None:
    train, val = ({numbers(row) for row in rows(split)} for split in ("train", "val"))
    assert (len(rows("train")), len(rows("val"))) == (400, 200)
    assert not train & val


def test_answers_are_the_sums_of_the_questions() -> None:
    for row in rows("train") + rows("val"):
        assert sum(int(number) for number in REWARD.NUMBER.findall(row["question"])) == row["answer"]


def test_the_files_are_what_the_script_makes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "make_tasks.py", "--out", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("train.jsonl", "val.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("42", 1.0),
        (" 42\n", 1.0),
        ("The sum is 42", 0.8),
        ("40 + 2 = 42.", 0.8),
        ("41", 0.2),
        ("42 is 40 + 2", 0.0),
        ("-42", 0.2),
        ("forty-two", 0.0),
        ("", 0.0),
    ],
)
def test_the_number_and_its_form_are_rewarded(answer: str, reward: float) -> None:
    assert REWARD.score({"answer": 42}, answer) == pytest.approx(reward)
