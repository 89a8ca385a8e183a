import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_files import load

EXAMPLE = Path(__file__).parents[1] / "examples" / "calculator_langgraph"

TASKS, REWARD = load(EXAMPLE, "make_tasks"), load(EXAMPLE, "reward")


def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def calculations(split: str) -> set[tuple[str, int, int]]:
    drawn = TASKS.problems(split, TASKS.SPLITS[split])
    return {(problem.operation, problem.a, problem.b) for _, problem in drawn}


def test_the_agent_knows_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8")
    assert "leyden" not in source.lower()
    assert "lightning" not in source.lower()
    assert "https://api.openai.com/v1" in source
    assert "temperature=0," in source


def test_the_tool_computes_and_refuses_everything_else() -> None:
    tool = load(EXAMPLE, "agent").calculator
    assert tool.invoke({"expression": "12*-3 + 4"}) == "-32"
    for refused in ("2**99", "__import__('os')", "1/2", "1.5+1", "", "7 +", "x", "1" + "+1" * 30):
        assert tool.invoke({"expression": refused}).startswith("error: ")


@pytest.mark.parametrize(
    ("content", "reward"),
    [
        ("Answer: 42", 1.0),
        ("Answer: 042", 1.0),
        ("Answer: -42", 0.0),
        ("Answer: 43", 0.0),
        ("Answer: 42.", 0.0),
        ("The answer is Answer: 42", 0.0),
        ("Answer: 42\n", 0.0),
        ("Answer: unknown", 0.0),
        ("Answer: " + "9" * 5000, 0.0),
        ("", 0.0),
        ([{"type": "text", "text": "Answer: 42"}], 0.0),
    ],
)
def test_only_the_right_number_in_the_asked_form_is_rewarded(content: object, reward: float) -> None:
    result = {"messages": [SimpleNamespace(content="Answer: 1"), SimpleNamespace(content=content)]}
    assert REWARD.score({"answer": 42}, result) == reward


def test_a_result_without_messages_earns_nothing() -> None:
    assert REWARD.score({"answer": 42}, {"messages": []}) == 0.0


def test_negative_answers_can_be_right() -> None:
    assert REWARD.score({"answer": -7}, {"messages": [SimpleNamespace(content="Answer: -7")]}) == 1.0


@pytest.mark.integration
@pytest.mark.parametrize("split", ["train", "val", "val_unseen", "val_tune"])
def test_a_shipped_file_is_what_its_seed_makes(split: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "make_tasks.py"), "--split", split, "--out", str(tmp_path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / f"{split}.jsonl").read_bytes() == (EXAMPLE / f"{split}.jsonl").read_bytes()


def test_rows_are_well_formed_and_their_answers_right() -> None:
    for split in TASKS.SHIPPED:
        drawn = TASKS.problems(split, TASKS.SPLITS[split])
        found = rows(split)
        assert len({row["id"] for row in found}) == len(found) == len({row["question"] for row in found})
        for row, (_, problem) in zip(found, drawn, strict=True):
            assert list(row) == ["id", "question", "answer"]
            assert row["answer"] == eval(f"{problem.a} {problem.operation} {problem.b}") >= 0
            assert {int(number) for number in re.findall(r"\d+", row["question"])} == {problem.a, problem.b}


def test_held_out_sets_are_large_enough() -> None:
    assert len(rows("val")) >= 300
    assert len(rows("val_unseen")) >= 300
    assert len(rows("val_tune")) >= 300


def test_no_calculation_is_trained_on_and_held_out() -> None:
    assert calculations("train").isdisjoint(calculations("val") | calculations("val_unseen") | calculations("dev"))
    assert calculations("dev").isdisjoint(calculations("val") | calculations("val_unseen"))
    assert calculations("val_tune").isdisjoint(calculations("train") | calculations("dev") | calculations("val"))
    shares = {TASKS.share_of(operation, a, b) for operation, a, b in calculations("train")}
    assert shares == {"train"}


def test_unseen_means_no_wording_name_or_item_in_common() -> None:
    seen, unseen = TASKS.SEEN, TASKS.UNSEEN
    assert set(seen.names).isdisjoint(unseen.names)
    assert set(seen.items).isdisjoint(unseen.items)
    for operation in "+-*":
        known = {shape(wording) for wordings in seen.wordings.values() for wording in wordings}
        assert known.isdisjoint(shape(wording) for wording in unseen.wordings[operation])
    words = {word for row in rows("train") for word in re.findall(r"\w+", row["question"])}
    assert words.isdisjoint(unseen.names) and words.isdisjoint(unseen.items)
    trained = {skeleton(row["question"], seen) for row in rows("train")}
    assert trained.isdisjoint(skeleton(row["question"], unseen) for row in rows("val_unseen"))


def shape(wording: str) -> str:
    return re.sub(r"\{\w+\}", "_", wording)


def skeleton(question: str, words: Any) -> str:
    filled = re.compile(r"\d+|\b(?:" + "|".join([*words.names, *words.items]) + r")\b")
    return filled.sub("_", question)
