"""The example with AutoGen: its tool, its problems, its reward, and its reader of Calc-X."""

# pyarrow and sympy leave their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

import asyncio
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sympy
from example_files import load
from hypothesis import given
from hypothesis import strategies as st

from tiny_policy.experts import load_expert
from tiny_policy.experts.math import NO_CONFUSION, Confusion, decide, is_hard
from tiny_policy.experts.math import calculator as call_tool
from tiny_policy.likeness import shown
from tiny_policy.recording import Plan
from tiny_policy.simulation import simulate
from tiny_policy.traces import Trace, record

EXAMPLE = Path(__file__).parents[1] / "examples" / "math"
PROBLEMS, REWARD = load(EXAMPLE, "problems"), load(EXAMPLE, "reward")


def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def data(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE / "data.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def said(content: object) -> Any:
    return SimpleNamespace(messages=[SimpleNamespace(content="Answer: 1"), SimpleNamespace(content=content)])


def reward(expected: object, answer: str) -> float:
    return REWARD.score({"answer": expected}, said(f"Answer: {answer}"))


def exactly(expression: str) -> Any:
    """The value by sympy, in whole numbers and fractions."""
    sympify: Any = sympy.sympify
    return sympify(expression, rational=True)


def test_the_agent_knows_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8")
    assert "leyden" not in source.lower() and "lightning" not in source.lower()
    assert "eval(" not in source and "temperature=0," in source


@pytest.fixture(scope="module")
def calculator() -> Callable[[str], str]:
    tool = load(EXAMPLE, "agent").calculator

    def calculate(expression: str) -> str:
        return asyncio.run(tool(expression))

    return calculate


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12+5", "17"),
        ("(12 + 5) * -3", "-51"),
        ("0.1+0.2", "0.3"),
        ("7/2", "3.5"),
        ("1/3", "0.3333"),
        ("-1/100000", "-0"),
        (".5*4", "2"),
        ("1/0", "error: division by zero"),
        ("2**99", "error: only numbers, +, -, *, / and parentheses are allowed"),
        ("7//2", "error: only numbers, +, -, *, / and parentheses are allowed"),
        ("__import__('os')", "error: only numbers, +, -, *, / and parentheses are allowed"),
        ("1e9", "error: only numbers, +, -, *, / and parentheses are allowed"),
        ("1" + "+1" * 50, "error: the expression is too long"),
        ("9" * 100, "error: the result is too large"),
        ("", "error: invalid syntax"),
    ],
)
def test_the_tool_computes_and_refuses_everything_else(calculator: Any, expression: str, result: str) -> None:
    assert calculator(expression).startswith(result)


@given(st.text(alphabet="0123456789.+-*/() ", max_size=100))
def test_whatever_a_policy_writes_the_tool_answers(calculator: Any, expression: str) -> None:
    answer = calculator(expression)
    assert answer.startswith("error: ") or math.isclose(
        float(answer), float(exactly(expression.strip())), rel_tol=1e-9, abs_tol=6e-5
    )


@pytest.mark.parametrize("expression", ["(" * 100, "-" * 99 + "1", "(" * 50 + ")" * 50, "1+" * 49 + "1"])
def test_deep_expressions_are_answered(calculator: Any, expression: str) -> None:
    assert calculator(expression)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_shipped_file_is_what_its_seed_makes(split: str, tmp_path: Path) -> None:
    assert data("generate", "--split", split, "--out", tmp_path).returncode == 0
    assert (tmp_path / f"{split}.jsonl").read_bytes() == (EXAMPLE / f"{split}.jsonl").read_bytes()


def test_answers_are_those_of_the_steps() -> None:
    for problem in PROBLEMS.problems(5, "train", 200):
        value: Any = problem.start
        for step in problem.steps:
            number = step.number
            value = exactly(f"({value}){step.wording.operation}({number})")
        assert Fraction(str(problem.answer)) == Fraction(str(value)) >= 1
        numbers = [problem.start, *(step.number for step in problem.steps)]
        numbers += [problem.distractor.number] if problem.distractor else []
        assert sorted(map(float, re.findall(r"\d+(?:\.\d+)?", problem.question))) == sorted(map(float, numbers))
        assert len(set(numbers)) == len(numbers)
        assert 2 <= len(problem.steps) <= 4


def test_there_are_problems_of_every_kind() -> None:
    drawn = PROBLEMS.problems(5, "val", 300)
    assert {len(problem.steps) for problem in drawn} == {2, 3, 4}
    assert {step.wording.operation for problem in drawn for step in problem.steps} == set("+-*/")
    assert share(problem.distractor is not None for problem in drawn) == pytest.approx(0.4, abs=0.1)
    assert 0.02 < share("." in problem.question[:-1] and "." in str(problem.start) for problem in drawn) < 0.3


def share(flags: Iterable[bool]) -> float:
    listed = list(flags)
    return sum(listed) / len(listed)


def test_no_calculation_and_no_combination_of_steps_is_trained_on_and_held_out() -> None:
    train = PROBLEMS.problems(random.Random(1).getrandbits(32), "train", 2000)
    for name, split in (("dev", PROBLEMS.problems(2, "dev", 300)), ("val", PROBLEMS.problems(3, "val", 300))):
        assert not calculations(train) & calculations(split), name
        assert not combinations(train) & combinations(split), name


def calculations(problems: Iterable[Any]) -> set[str]:
    return {calculation for problem in problems for calculation in problem.calculations}


def combinations(problems: Iterable[Any]) -> set[str]:
    return {problem.combination for problem in problems}


def test_rows_are_well_formed_and_splits_share_no_question() -> None:
    questions: set[str] = set()
    for split, count in (("train", 1000), ("val", 300)):
        found = rows(split)
        assert len(found) == count
        assert all(list(row) == ["id", "question", "answer"] for row in found)
        assert not questions & {row["question"] for row in found}
        questions |= {row["question"] for row in found}
    assert len(questions) == 1300


@pytest.mark.parametrize(
    ("expected", "answer", "right"),
    [
        ("42", "42", 1.0),
        ("42", "42.0", 1.0),
        ("42", "+42 apples", 1.0),
        ("42", "42.", 1.0),
        ("42", "84/2", 1.0),
        ("42", "42.1", 0.0),
        ("42", "43", 0.0),
        ("42", "-42", 0.0),
        ("-42", "−42", 1.0),
        ("-42", "-$42", 1.0),
        (42, "42", 1.0),
        (0.5, "1/2", 1.0),
        ("1234567", "1,234,567", 1.0),
        ("1_234", "1234", 1.0),
        ("1234", "1,23,4", 0.0),
        ("12.5", "12,5", 0.0),
        ("3/4", "3/4", 1.0),
        ("3/4", "6/8", 1.0),
        ("3/4", "0.75 of a cake", 1.0),
        ("3/4", "0.752", 1.0),
        ("3/4", "4/5", 0.0),
        ("2/3 = around 0.666667", "0.67", 1.0),
        ("1 1/2", "3/2", 1.0),
        ("12.5", "12.6", 1.0),
        ("12.5", "12.7", 0.0),
        ("12.5", "1.25e1", 1.0),
        ("0", "0", 1.0),
        ("0", "0.001", 0.0),
        ("50%", "50 %", 1.0),
        ("50%", "0.5", 1.0),
        ("50", "50%", 0.0),
        ("50%", "50 pct", 1.0),
        ("50%", "50 Per cent", 1.0),
        ("50%", "50 percents", 1.0),
        ("5", "5 m", 1.0),
        ("5", "5 cents", 1.0),
        ("5", "5 quarters", 1.0),
        ("42", "1e999999999", 0.0),
        ("42", "4" * 5000, 0.0),
        ("42", "NaN", 0.0),
        ("42", "inf", 0.0),
        ("42", "1/0", 0.0),
        ("42", "42 or 43", 0.0),
        ("42", "", 0.0),
        ("42", "unknown", 0.0),
        ("B", "B", 1.0),
        ("B", "(b)", 1.0),
        ("B", "C", 0.0),
        ("B", "Banana", 0.0),
        ("B", "3", 0.0),
    ],
)
def test_an_answer_is_compared_as_a_number_or_as_an_option(expected: object, answer: str, right: float) -> None:
    assert reward(expected, answer) == right


@pytest.mark.parametrize(
    "words",
    [
        *("thousand", "hundreds", "dozens", "Millions", "lakh", "crore", "score", "mn", "M", "B", "k", "bn$", "tenths"),
        *("million dollars", "and a half", "apples percent", "per mille", "percentage points", "π", "万"),
    ],
)
def test_a_word_that_changes_the_number_makes_it_unread(words: str) -> None:
    assert REWARD.value_of(f"5 {words}") is REWARD.value_of(f"5{words}") is None


@given(st.fractions())
def test_a_fraction_is_read_as_calc_x_writes_it(number: Fraction) -> None:
    written = f"{number.numerator:_}/{number.denominator:_}"
    if len(written) <= REWARD.LONGEST:
        expected = f"{written} = around {float(number):_.6f}"
        assert REWARD.value_of(expected) == REWARD.Value(number, exact=True)
        assert reward(expected, f"{number.numerator:,}/{number.denominator}") == 1.0
        assert reward(expected, str(number + 1)) == 0.0


@given(
    st.integers(1, 10**7), st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from(" _"), st.sampled_from("-+")
)
def test_a_mixed_number_is_read_with_a_space_or_an_underscore(
    whole: int, above: int, below: int, between: str, sign: str
) -> None:
    written = f"{whole:_}{between}{above}/{below}"
    is_group = between == "_" and 100 <= above <= 999
    number = Fraction(f"{whole}{above}") / below if is_group else whole + Fraction(above, below)
    expected = REWARD.Value(-number if sign == "-" else number, exact=True)
    assert REWARD.value_of(sign + written) == (expected if is_group or above < below else None)


@pytest.mark.parametrize(
    ("expected", "right"),
    [
        ("1_000/3 = around 333.333333", ["333.33", "1000/3", "1,000/3"]),
        ("12_500/7 = around 1_785.714286", ["1785.714", "12_500/7", "12,500/7"]),
    ],
)
def test_a_fraction_of_calc_x_with_thousands_is_no_mixed_number(expected: str, right: list[str]) -> None:
    assert [reward(expected, answer) for answer in right] == [1.0, 1.0, 1.0]
    assert reward(expected, "1") == reward(expected, "1 000/3") == reward(expected, "83 3/7") == 0.0


@given(st.fractions(max_denominator=999))
def test_a_number_is_equal_to_itself_in_every_exact_form(number: Fraction) -> None:
    forms = [str(number), f"{number.numerator * 3}/{number.denominator * 3}", f"{number} apples"]
    for form in forms if abs(number) < 10**15 else ():
        assert reward(str(number), form) == 1.0
        assert reward(str(number), str(number + 1)) == 0.0


@given(st.integers(0, 10**12))
def test_separators_of_thousands_change_nothing(number: int) -> None:
    assert reward(number, f"{number:,}") == reward(number, f"{number:_}") == 1.0


@given(st.decimals(-(10**6), 10**6, places=3), st.decimals(-(10**6), 10**6, places=3))
def test_decimals_are_compared_as_calc_x_compares_them(expected: Any, answer: Any) -> None:
    close = math.isclose(expected, answer, rel_tol=1e-2)
    task, result = {"answer": str(expected)}, said(f"Answer: {answer}")
    if not math.isclose(abs(expected - answer), max(abs(expected), abs(answer)) / 100, rel_tol=1e-6):
        assert REWARD.score_calc_x(task, result) == close
        whole = expected == expected.to_integral_value()
        assert REWARD.score(task, result) == (expected == answer if whole else close)


@given(st.text(max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    for content in (text, f"Answer: {text}"):
        for expected in ("42", "B", "1/3"):
            assert REWARD.score({"answer": expected}, said(content)) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("content", "right"),
    [
        ("I calculated.\nAnswer: 42\n", 1.0),
        ("Answer: 41\nAnswer: 42", 1.0),
        ("Answer: 42\nAnswer: 41", 0.0),
        ("42", 0.0),
        ("", 0.0),
        (None, 0.0),
        ([{"type": "text", "text": "Answer: 42"}], 0.0),
    ],
)
def test_only_the_last_answer_of_the_last_message_counts(content: object, right: float) -> None:
    assert REWARD.score({"answer": "42"}, said(content)) == right


def test_a_result_without_messages_earns_nothing() -> None:
    assert REWARD.score({"answer": "42"}, SimpleNamespace(messages=[])) == 0.0


def test_calc_x_takes_whole_numbers_as_the_same_within_a_hundredth() -> None:
    assert REWARD.score_calc_x({"answer": "100"}, said("Answer: 101")) == 1.0
    assert REWARD.score({"answer": "100"}, said("Answer: 101")) == 0.0


@pytest.mark.parametrize("task", [{"answer": "a lot"}, {"answer": "nan"}, {"answer": None}, {}])
def test_a_task_without_a_comparable_answer_is_an_error(task: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="neither a number nor an option"):
        REWARD.score(task, said("Answer: 42"))


CALC_X = {
    "id": ["gsm8k__a", "ape210k__b", "aqua_rat__c", "mawps__d"],
    "question": ["How many are 2 and 3?", "What is x if 3x = 2?", "Choose.\nA) 1 B) 2", "How much?"],
    "chain": [
        '<gadget id="calculator">2 + 3</gadget>\n<output>5</output>\n\n<result>5</result>',
        '<gadget id="calculator">2 / 3</gadget>\n<output>2/3 = around 0.666667</output>\n\n<result>2/3</result>',
        "<result>B</result>",
        "<result>some</result>",
    ],
    "result": ["5", "2/3", "B", "some"],
}


@pytest.mark.parametrize(
    "more", [{"source_ds": ["gsm8k", "ape210k", "aqua_rat", "mawps"]}, {"result_float": [5.0] * 4}]
)
def test_a_file_of_calc_x_becomes_tasks(more: dict[str, list[Any]], tmp_path: Path) -> None:
    pq.write_table(pa.table(CALC_X | more), tmp_path / "train.parquet")
    done = data("calc_x", tmp_path / "train.parquet", "--out", tmp_path / "tasks.jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("3 tasks; 1 rows without a comparable result left out\n")
    found = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["answer"] for row in found] == ["5", "2/3", "B"]
    assert [row["question"] for row in found] == CALC_X["question"][:3]
    assert found[0].get("source") == ("gsm8k" if "source_ds" in more else None)
    for row, answer in zip(found, ("5", "0.6667", "B"), strict=True):
        assert REWARD.score(row, said(f"Answer: {answer}")) == 1.0


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["2+2?"]}), tmp_path / "columns.parquet")
    pq.write_table(pa.table({"question": ["2+2?"], "result": [None]}), tmp_path / "empty.parquet")
    pq.write_table(pa.table({"question": [b"2+2?"], "result": ["4"]}), tmp_path / "binary.parquet")
    encoded = pa.array([b"4"]).dictionary_encode()
    pq.write_table(pa.table({"question": ["2+2?"], "result": encoded}), tmp_path / "encoded.parquet")
    latin = pa.array([b"caf\xe9?"]).view(pa.string())
    pq.write_table(pa.table({"question": latin, "result": ["4"]}), tmp_path / "latin.parquet")
    (tmp_path / "text.parquet").write_text("id,question\n")
    for name, message in (
        ("columns.parquet", "lacks the column 'result' of Calc-X; it has question"),
        ("empty.parquet", "none of its 1 rows has a question and a result that is a number or an option"),
        ("binary.parquet", "the column 'question' is binary; cast it to string and write the file again"),
        ("encoded.parquet", "the column 'result' is binary; cast it to string and write the file again"),
        ("latin.parquet", "has a text that is not UTF-8; write the file again with texts in UTF-8"),
        ("text.parquet", "cannot be read as Parquet"),
        ("nowhere.parquet", "does not exist"),
        ("", "is a folder; give one of its files"),
    ):
        done = data("calc_x", tmp_path / name, "--out", tmp_path / "tasks.jsonl")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"{tmp_path / name}: {message}" in done.stderr
    assert not (tmp_path / "tasks.jsonl").exists()


def recorded(plans: Sequence[Plan]) -> list[Trace]:
    path = [*sys.path]
    try:
        return record(plans, load_expert("math").agent)
    finally:
        sys.path[:] = path  # loading the agent puts its folder first


def test_a_simulated_trace_is_the_trace_that_a_run_would_have_been() -> None:
    expert = load_expert("math")
    plans = expert.draw(7, 30, erring=True)
    traces = recorded(plans)
    made = simulate(plans, traces[:10], call_tool)
    assert [[shown(call) for call in trace] for trace in made] == [[shown(call) for call in trace] for trace in traces]
    with pytest.raises(ValueError, match="more than question and results"):
        simulate(plans, traces, lambda arguments: "0")


def test_without_confusion_the_expert_is_always_right() -> None:
    plans = load_expert("math").draw(7, 20, erring=False)
    traces = recorded(plans)
    for problem, plan, trace in zip(PROBLEMS.problems(7, "train", 20), plans, traces, strict=True):
        assert plan.task == {"question": problem.question}
        assert len(trace) == len(problem.steps) + 1
        assert REWARD.score({"answer": PROBLEMS.shown(problem.answer)}, said(trace[-1].answer["content"])) == 1.0


def test_the_expert_errs_as_often_as_it_says() -> None:
    rng, confusion = random.Random(5), Confusion()
    drawn = PROBLEMS.problems(5, "train", 2000)
    decisions = [(problem, decide(rng, problem, confusion)) for problem in drawn]
    assert share(decision.guess is not None for _, decision in decisions) == pytest.approx(0.1, abs=0.02)
    used = [(problem, decision) for problem, decision in decisions if decision.guess is None]
    plain = [(problem, decision) for problem, decision in used if problem.distractor is None]
    short = share(len(decision.changes) < len(problem.steps) for problem, decision in plain)
    assert short == pytest.approx(confusion.stops_early, abs=0.03)
    for hard, rate in ((True, confusion.mistakes_hard), (False, confusion.mistakes)):
        chosen = [
            change[0] != step.wording.operation
            for problem, decision in plain
            for change, step in zip(decision.changes, problem.steps, strict=False)
            if is_hard(PROBLEMS.WORDINGS, step.wording) == hard
        ]
        assert share(chosen) == pytest.approx(rate, abs=0.03)
    distracted = [(problem, decision) for problem, decision in used if problem.distractor is not None]
    added = share(f"+{problem.distractor.number}" in decision.changes for problem, decision in distracted)
    assert added == pytest.approx(confusion.uses_distractor, abs=0.06)  # some of them are what it stops before


def test_the_expert_never_errs_in_copying() -> None:
    rng = random.Random(6)
    for problem in PROBLEMS.problems(6, "train", 300):
        decision = decide(rng, problem, Confusion())
        numbers = {change[1:] for change in decision.changes}
        assert decision.start == PROBLEMS.shown(problem.start)
        assert numbers <= set(re.findall(r"\d+(?:\.\d+)?", problem.question))
        assert len(decide(rng, problem, NO_CONFUSION).changes) == len(problem.steps)


README = (EXAMPLE / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """In a folder that looks like the checkout; the run is one small step."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/math").symlink_to(EXAMPLE)
    pq.write_table(pa.table(CALC_X), tmp_path / "train-00000-of-00001.parquet")
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join((EXAMPLE / "val.jsonl").read_text(encoding="utf-8").splitlines()[:4]) + "\n")
    small = ["--steps", "1", "--tasks-per-step", "4", "--group-size", "4", "--val", str(few), "--no-check"]
    more = {"train": small, "dev": ["-n", "1"]}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    for line in commands():
        program, *arguments = shlex.split(line)
        module = ["-m", "leyden.core.cli"] if program == "leyden" else []
        command = [sys.executable, *module, *arguments, *more.get(arguments[0], [])]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "math-tasks/val.jsonl").exists() and (tmp_path / "calc_x_train.jsonl").exists()
    assert (tmp_path / "runs/math/policy").is_dir()


def test_what_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (EXAMPLE / target).exists(), target
    for name in re.findall(r"^\| `([\w.]+)/?` \|", README, re.M):
        assert (EXAMPLE / name).exists(), name
    size = sum(file.stat().st_size for file in (EXAMPLE / "policy").iterdir())
    assert size < 2_000_000
