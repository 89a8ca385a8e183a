"""The example that answers questions: its world, its reward, its retriever, and the reader of MuSiQue."""

import asyncio
import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import agents
import pytest
from example_files import load
from hypothesis import given, settings
from hypothesis import strategies as st
from warm_process import run_leyden

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.shared_state import shared_objects
from tiny_policy import wire
from tiny_policy.experts import load_expert
from tiny_policy.recording import Plan, run_all
from tiny_policy.traces import record

EXAMPLE = Path(__file__).parents[1] / "examples" / "qa"
WORLD, REWARD = load(EXAMPLE, "world"), load(EXAMPLE, "reward")
SENTENCES = {
    "born": r"(\w+) was born in (\w+)\.",
    "works": r"(\w+) works for (\w+)\.",
    "founded": r"(\w+) was founded by (\w+)\.",
    "seat": r"(\w+) has its seat in (\w+)\.",
    "river": r"(\w+) lies on the river (\w+)\.",
    "mayor": r"(\w+) has the mayor (\w+)\.",
    "source": r"(\w+) has its source near (\w+)\.",
    "mouth": r"(\w+) has its mouth at (\w+)\.",
}
NOUNS = {noun: relation for relation in WORLD.RELATIONS for noun in WORLD.RELATIONS[relation].nouns}
SPLITS = [path.stem for path in EXAMPLE.glob("*.jsonl") if path.stem != "encyclopaedia"]


@pytest.fixture(autouse=True, scope="module")
def no_key_for_traces() -> Iterator[None]:
    """The agent sets a key for the whole process, with which the SDK would export the traces of all later tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents, "set_default_openai_key", partial(agents.set_default_openai_key, use_for_tracing=False))
        yield


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def data(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, EXAMPLE / "data.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def facts_read() -> dict[tuple[str, str], str]:
    """The facts, read again from the sentences of the shipped encyclopaedia."""
    facts: dict[tuple[str, str], str] = {}
    for passage in rows("encyclopaedia"):
        found = [(relation, re.fullmatch(sentence, passage["text"])) for relation, sentence in SENTENCES.items()]
        [(relation, match)] = [(relation, match) for relation, match in found if match]
        assert match[1] == passage["title"]
        assert facts.setdefault((match[1], relation), match[2]) == match[2]
    return facts


def chain_read(question: str) -> tuple[str, list[str]]:
    """The first entity and the relations of a question, read from its text."""
    phrase = re.sub(r"^(What is|Name|Which one is|Find) |[?.]$", "", question)
    if "'s " in phrase:
        start, *nouns = phrase.split("'s ")
    else:
        *reverse, start = phrase.split(" of ")
        nouns = [noun.removeprefix("the ") for noun in reversed(reverse)]
    return start, [NOUNS[noun] for noun in nouns]


def path_of(facts: dict[tuple[str, str], str], question: str) -> list[str]:
    """The entities of a question's chain, as far as the encyclopaedia knows them."""
    start, chain = chain_read(question)
    path = [start]
    for relation in chain:
        if (path[-1], relation) not in facts:
            break
        path.append(facts[path[-1], relation])
    return path


def test_the_agent_knows_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8").lower()
    assert "leyden" not in source and "lightning" not in source


@pytest.mark.parametrize("split", SPLITS)
def test_answers_follow_from_the_encyclopaedia(split: str) -> None:
    facts, found = facts_read(), rows(split)
    for row in found:
        path, hops = path_of(facts, row["question"]), len(chain_read(row["question"])[1])
        assert hops == row["hops"] in (2, 3, 4)
        assert row["answer"] == (path[-1] if len(path) == hops + 1 else "unanswerable")
    unanswerable = sum(row["answer"] == "unanswerable" for row in found)
    assert 0.1 < unanswerable / len(found) < 0.3
    assert len({row["id"] for row in found}) == len(found)


def test_no_entity_of_a_held_out_question_comes_up_in_training() -> None:
    facts = facts_read()
    entities = {split: {name for row in rows(split) for name in path_of(facts, row["question"])} for split in SPLITS}
    for split in set(SPLITS) - {"train"}:
        assert entities[split].isdisjoint(entities["train"])
    world = WORLD.build_world(0)
    shares: list[set[str]] = [set().union(*kinds.values()) for kinds in world.shares.values()]
    assert all(one.isdisjoint(other) for one, other in combinations(shares, 2))
    for (subject, _), target in world.facts.items():
        assert target is None or [subject in share for share in shares] == [target in share for share in shares]


@pytest.mark.integration
def test_the_shipped_files_are_what_the_seed_makes(tmp_path: Path) -> None:
    done = data("generate", "--split", *SPLITS, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("encyclopaedia", *SPLITS):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (EXAMPLE / f"{name}.jsonl").read_bytes()


def test_another_seed_makes_another_world() -> None:
    assert WORLD.build_world(1).facts == WORLD.build_world(1).facts != WORLD.build_world(2).facts


def test_every_fact_is_found_by_its_word_and_its_subject() -> None:
    library = load(EXAMPLE, "agent").encyclopaedia
    world = WORLD.build_world(0)
    for (subject, relation), target in random.Random(0).sample(sorted(world.facts.items(), key=str), 200):
        first = library.search(f"{relation} {subject}")[0]
        sentence = WORLD.RELATIONS[relation].passage.format(x=subject, y=target)
        assert (first == sentence) == (target is not None)


def test_a_search_without_a_common_word_finds_nothing() -> None:
    library = load(EXAMPLE, "agent").Library(["Paris: The capital of France.", "Rome: The capital of Italy."])
    assert library.search("river Thames") == library.search("") == library.search("the") == []
    assert library.search("capital Italy")[0] == "Rome: The capital of Italy."


def reference_f1(answer: str, expected: str) -> float:
    """Token F1 with SQuAD's normalisation, written again: character by character, multisets counted by hand."""

    def words(text: str) -> list[str]:
        kept = "".join(each for each in text.lower() if each not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
        return [word for word in re.split(r"\s+", re.sub(r"\b(?:a|an|the)\b", " ", kept)) if word]

    found, wanted = words(answer), words(expected)
    special = {("yes",), ("no",), ("unanswerable",)}
    if not found or not wanted or {tuple(found), tuple(wanted)} & special:
        return float(found == wanted)
    rest, common = [*wanted], 0
    for word in found:
        if word in rest:
            rest.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


WORDS = st.lists(
    st.sampled_from(
        ["the", "a", "An", "Eiffel", "eiffel", "Tower", "tower.", "U.S.", "us", "no", "Yes", "unanswerable", "-", "x"]
    ),
    max_size=5,
).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(answer=WORDS, expected=WORDS)
def test_f1_is_that_of_a_second_implementation(answer: str, expected: str) -> None:
    assert REWARD.f1(answer, expected) == pytest.approx(reference_f1(answer, expected))


@pytest.mark.parametrize(
    ("output", "f1", "form"),
    [
        ("<answer> Bronn </answer>", 1.0, 1.0),
        ("I found it. <answer>the bronn!</answer>\n", 1.0, 1.0),
        ("<answer>River Bronn</answer>", 2 / 3, 1.0),
        ("<answer>The Upper Bronn River</answer>", 1.0, 1.0),
        ("<answer>unanswerable</answer>", 0.0, 1.0),
        ("Bronn", 0.0, 0.0),
        ("<answer>Bronn", 0.0, 0.0),
        ("<answer> </answer>", 0.0, 0.0),
        ("<answer>Bronn</answer> and more", 0.0, 0.0),
        ("<answer>Bronn</answer><answer>Kell</answer>", 0.0, 0.0),
        ("<answer>x <answer>Bronn</answer>", 0.0, 0.0),
        (None, 0.0, 0.0),
    ],
)
def test_form_and_the_best_alias_are_rewarded(output: object, f1: float, form: float) -> None:
    task = {"answer": "Bronn", "answer_aliases": ["Upper Bronn River"]}
    if output == "<answer>River Bronn</answer>":
        f1 = max(reference_f1("River Bronn", each) for each in ("Bronn", "Upper Bronn River"))
    assert REWARD.score(task, output) == {"f1": pytest.approx(f1), "format": form}


@pytest.mark.parametrize(
    ("aliases", "f1"),
    [(["Kell"], 1.0), ('["Kell", "K"]', 1.0), ("[]", 0.0), (None, 0.0), ("null", 0.0), ("", 0.0), (" ", 0.0)],
)
def test_aliases_are_a_list_or_json_or_nothing(aliases: object, f1: float) -> None:
    task = {"answer": "Bronn", "answer_aliases": aliases}
    assert REWARD.score(task, "<answer>Kell</answer>") == {"f1": f1, "format": 1.0}


@pytest.mark.parametrize("aliases", ["abc", "5", '"abc"', '{"a": 1}', "[1]", "[" * 100_000, ["a", None], {"a": 1}, 5])
def test_other_aliases_are_refused_in_one_line(aliases: object) -> None:
    message = r'^`answer_aliases` must be a list of texts, as \["one", "two"\], and is .{1,60}$'
    with pytest.raises(ValueError, match=message):
        REWARD.score({"answer": "abc", "answer_aliases": aliases}, "<answer>b</answer>")


def test_an_unanswerable_question_has_one_right_answer() -> None:
    task = {"answer": "unanswerable"}
    assert REWARD.score(task, "<answer>Unanswerable.</answer>") == {"f1": 1.0, "format": 1.0}
    assert REWARD.score(task, "<answer>unanswerable Bronn</answer>") == {"f1": 0.0, "format": 1.0}


def paragraph(number: int, *, supports: bool = False) -> dict[str, Any]:
    text = f"Green is an album that place {number} has a long text about."
    return {"idx": number, "title": f"Place {number}", "paragraph_text": text, "is_supporting": supports}


def musique_row(**changed: Any) -> dict[str, Any]:
    """A row with the fields of the release, in its order."""
    hop = {"id": 8, "question": "Green >> performer", "answer": "Steve Hillage", "paragraph_support_idx": 3}
    row = {
        "id": "2hop__482757_12019",
        "paragraphs": [paragraph(number, supports=number in (3, 7)) for number in range(20)],
        "question": "Who is the spouse of the Green performer?",
        "question_decomposition": [hop, {**hop, "id": 9, "question": "#1 >> spouse", "answer": "Miquette Giraudy"}],
        "answer": "Miquette Giraudy",
        "answer_aliases": ["M. Giraudy"],
        "answerable": True,
    }
    return row | changed


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_the_ans_and_the_full_file_of_musique_become_tasks(tmp_path: Path) -> None:
    # In "full", a question comes twice: the second time a supporting paragraph is replaced, and the answer stays.
    second = musique_row(answerable=False)
    second["question_decomposition"][1]["paragraph_support_idx"] = None
    for name, lines in (("ans", [musique_row()]), ("full", [musique_row(), second])):
        file = written(tmp_path / f"musique_{name}_v1.0_dev.jsonl", *lines)
        done = data("musique", file, "--out", tmp_path / f"{name}.jsonl")
        assert done.returncode == 0, done.stderr
        tasks = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert [task["answer"] for task in tasks] == ["Miquette Giraudy", "unanswerable"][: len(lines)]
        assert [task["answer_aliases"] for task in tasks] == [["M. Giraudy"], []][: len(lines)]
        assert all(len(task["passages"]) == 20 for task in tasks)
        assert tasks[0]["passages"][3] == "Place 3: " + paragraph(3)["paragraph_text"]
        assert tasks[0]["question"] == musique_row()["question"]
        assert "question_decomposition" not in tasks[0]
        assert REWARD.score(tasks[0], "<answer>m giraudy</answer>")["f1"] == 1.0


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: a row must be an object"),
        (musique_row(answerable="yes"), "line 2: `answerable` must be a bool, and is str"),
        ({"id": "1"}, "line 2: `paragraphs` must be a list, and is missing"),
        (musique_row(paragraphs=[]), "line 2: `paragraphs` is empty"),
        (
            musique_row(paragraphs=[{"title": "A"}]),
            "line 2: `paragraphs[0].paragraph_text` must be a str, and is missing",
        ),
        (musique_row(paragraphs=["A"]), "line 2: `paragraphs[0]` must be a dict, and is str"),
        (musique_row(answer_aliases=[1]), "line 2: `answer_aliases[0]` must be a str, and is int"),
        (musique_row(question="\ud800"), "line 2: `question` has half a character ('\\ud800'), which no file can hold"),
        (musique_row(answer_aliases=["\udfff"]), "line 2: `answer_aliases[0]` has half a character"),
        ("[" * 100_000, "line 2: nested too deeply; a row must be an object"),
        ('{"id": ' + "1" * 5000 + "}", "line 2: not JSON (Exceeds the limit"),
    ],
)
def test_a_line_that_is_not_musiques_is_one_error(line: Any, error: str, tmp_path: Path) -> None:
    done = data("musique", written(tmp_path / "bad.jsonl", musique_row(), line), "--out", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert error in done.stderr and "bad.jsonl" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "marked.jsonl").write_text(json.dumps(musique_row()) + "\n", encoding="utf-8-sig")
    done = data("musique", tmp_path / "marked.jsonl", "--out", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["id"] == musique_row()["id"]


def test_a_missing_an_empty_and_a_binary_file_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for file, error in (
        (tmp_path / "none.jsonl", "No such file"),
        (written(tmp_path / "empty.jsonl"), "no rows"),
        (tmp_path / "binary", "not UTF-8"),
        (tmp_path, "Is a directory"),
    ):
        done = data("musique", file, "--out", tmp_path / "out.jsonl")
        assert done.returncode == 2 and error in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture
def search_path() -> Iterator[None]:
    """Undo what loading the agent adds to the import path."""
    path = [*sys.path]
    yield
    sys.path[:] = path


@pytest.mark.integration
@pytest.mark.usefixtures("search_path")
def test_an_expert_without_mistakes_answers_every_question_through_the_agent() -> None:
    expert, world = load_expert("qa"), WORLD.build_world(0)
    plans = expert.draw(3, 12, erring=False)
    traces = record(plans, expert.agent)
    for trace, question in zip(traces, WORLD.draw_questions(world, "train", 12, 3), strict=True):
        searches = len(WORLD.walk(world, question.start, question.chain))
        assert trace[0].messages[-1]["content"] == question.text
        assert len(trace) == searches + 1
        assert REWARD.score({"answer": question.answer}, trace[-1].answer["content"]) == {"f1": 1.0, "format": 1.0}


@pytest.mark.integration
@pytest.mark.usefixtures("search_path")
def test_an_agent_searches_the_passages_of_its_task(tmp_path: Path) -> None:
    file = written(tmp_path / "musique_ans_v1.0_dev.jsonl", musique_row())
    assert data("musique", file, "--out", tmp_path / "tasks.jsonl").returncode == 0
    task = json.loads((tmp_path / "tasks.jsonl").read_text())

    def write(messages: Sequence[wire.Message], formatted: bool) -> str:
        return (
            "<answer>x</answer>" if messages[-1]["role"] == "tool" else wire.call_text("search", '{"query": "place 7"}')
        )

    _, last = asyncio.run(run_all(f"{EXAMPLE}/agent.py:answer", [Plan(task, write)]))
    passages = last.messages[-1]["content"].splitlines()
    assert [passage[:3] for passage in passages] == ["1. ", "2. "]
    assert all(passage[3:] in task["passages"] for passage in passages)


@pytest.mark.integration
@pytest.mark.usefixtures("search_path")
def test_an_agent_that_never_answers_ends() -> None:
    plan = Plan(
        {"question": "Name Alba's mayor."}, lambda messages, formatted: wire.call_text("search", '{"query": "mayor"}')
    )
    assert len(asyncio.run(run_all(f"{EXAMPLE}/agent.py:answer", [plan]))) == 8


def test_the_experts_mistakes_come_at_their_rates() -> None:
    module = import_module("tiny_policy.experts.qa")
    rng, mistakes = random.Random(0), module.Mistakes()
    question = WORLD.Question("", "Alba", ("founded", "born", "river", "mouth"), "")
    drawn = [module.decide(rng, question, mistakes) for _ in range(4000)]
    for stopped_after, chance in ((1, 0.1), (2, 0.9 * 0.6), (3, 0.9 * 0.4 * 0.6), (4, 0.9 * 0.4 * 0.4)):
        share = sum(len(decision.attributes) == stopped_after for decision in drawn) / len(drawn)
        assert share == pytest.approx(chance, abs=0.03)
    assert sum(decision.guesses for decision in drawn) / len(drawn) == pytest.approx(0.6, abs=0.03)
    swapped = [module.decide(rng, WORLD.Question("", "Alba", ("seat",), ""), mistakes) for _ in range(4000)]
    share = sum(decision.attributes == ("founded",) for decision in swapped) / len(swapped)
    assert share == pytest.approx(0.6, abs=0.03)
    perfect = {module.decide(rng, question, module.NO_MISTAKES) for _ in range(100)}
    assert perfect == {module.Decision("Alba", question.chain)}


def test_the_policy_is_small() -> None:
    assert sum(file.stat().st_size for file in (EXAMPLE / "policy").iterdir()) < 2_000_000


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_run_of_the_readme_trains(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "qa").symlink_to(EXAMPLE)
    assert "leyden train --config examples/qa/run.yaml\n" in (EXAMPLE / "README.md").read_text(encoding="utf-8")
    few_tasks = tmp_path / "few.jsonl"
    few_tasks.write_text("".join(json.dumps(row) + "\n" for row in rows("val")[:4]), encoding="utf-8")
    few = ["--steps", "1", "--tasks-per-step", "8", "--group-size", "4", "--no-check", "--val", str(few_tasks)]
    command = ["train", "--config", "examples/qa/run.yaml", *few, "--name", "short"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = run_leyden(command, cwd=tmp_path, environment=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs/short/metrics.jsonl").read_text().splitlines()]
    [metrics] = [line for line in lines if "rollouts" in line]
    assert metrics["rollouts"] == 32 and metrics["tokens_trained"] > 0, metrics


def musique_commands() -> list[list[str]]:
    """The commands that the README shows for MuSiQue, as words."""
    [block] = re.findall(r"^```sh\n(.*?)^```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.integration
def test_the_readme_makes_the_files_of_musique_that_it_trains_on(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/qa").symlink_to(EXAMPLE)
    for part in ("train", "dev"):
        written(tmp_path / f"musique_ans_v1.0_{part}.jsonl", musique_row())
    *conversions, training = musique_commands()
    for words in conversions:
        subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    given = dict(pairwise(training))
    assert (training[:2], given["--policy"]) == (["leyden", "train"], "MODEL")
    for place in (training[2], given["--tasks"], given["--val"], given["--reward"]):
        assert (tmp_path / place.partition(":")[0]).is_file(), place


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_training_on_musique_of_the_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/qa").symlink_to(EXAMPLE)
    *conversions, training = musique_commands()
    for part in ("train", "dev"):
        written(tmp_path / f"musique_ans_v1.0_{part}.jsonl", *(musique_row(id=f"{part}-{n}") for n in range(4)))
    for words in conversions:
        subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    few = ["--steps", "1", "--tasks-per-step", "2", "--group-size", "2", "--no-check", "--name", "short"]
    command = [str(EXAMPLE / "policy") if word == "MODEL" else word for word in training[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = run_leyden([*command, *few], cwd=tmp_path, environment=environment, timeout=280)
    assert done.returncode == 0, done.stderr


def test_rollouts_share_nothing_that_changes() -> None:
    """They share a process, therefore: the index of the passages and the passages are only read."""
    assert shared_objects(AgentSource.of(load(EXAMPLE, "agent").answer)) == []
