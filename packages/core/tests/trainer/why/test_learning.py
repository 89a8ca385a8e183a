from pathlib import Path

import pytest

from leyden.core.algorithm.account import Account
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import LEARNED, RunFolder
from leyden.core.trainer.why.learning import LearnedStep, Learning, joined


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, RunConfig(name="r", policy="p"), [{"question": "?"}], {})


def test_what_batches_left_behind_is_read_back(folder: RunFolder) -> None:
    folder.append_learned(1, [Account(trained=["a"], rollouts={"no spread": ["b"]}, calls={"uncredited": ["s2"]})])
    folder.append_learned(2, [Account(rollouts={"no reward": ["c"]}, unmoved=["s1"])])
    found = Learning.of(folder)
    assert found.steps == {"a": [LearnedStep(1)]}
    assert found.reasons == {"b": ["no spread"], "c": ["no reward"]}
    assert found.collected_for == {"b": 1, "c": 2}
    assert (found.of_call("a", "s1"), found.of_call("a", "s2")) == ([LearnedStep(1)], [])
    assert (found.why_not("s2"), found.why_not("s1"), found.unmoved) == ("uncredited", None, {"s1"})


def test_a_line_that_a_crash_cut_off_is_left_out(folder: RunFolder) -> None:
    folder.append_learned(1, [Account(trained=["a"])])
    with folder.learned_file.open("ab") as file:
        file.write(b'{"step":2,"account":{"trai')
    assert Learning.of(folder).steps == {"a": [LearnedStep(1)]}


def test_steps_that_are_taken_again_are_forgotten(folder: RunFolder) -> None:
    for step in (1, 2, 3):
        folder.append_metrics({"step": step, "reward": 0.5})
        folder.append_learned(step, [Account(trained=[f"r{step}"])])
    folder.rewind_metrics(2)
    assert Learning.of(folder).steps == {"r1": [LearnedStep(1)], "r2": [LearnedStep(2)]}
    folder.rewind_metrics(-1)
    assert Learning.of(folder).steps == {}


def test_steps_that_were_rolled_back_are_known(folder: RunFolder) -> None:
    aside = folder.path / "set_aside" / "1"
    aside.mkdir(parents=True)
    (aside / "metrics.jsonl").write_bytes(b'{"step":3,"reward":0.5}\n')
    (aside / LEARNED).write_bytes(b'{"step":3,"account":{"trained":["x"]}}\n')
    found = Learning.of(folder)
    assert (found.rolled_back, found.is_recorded) == ({"x": LearnedStep(3)}, True)


def test_a_run_that_took_steps_without_a_record_is_known_as_one(folder: RunFolder) -> None:
    assert Learning.of(folder).is_recorded, "no step was taken yet"
    folder.append_metrics({"step": 0, "held_out": "val", "success": 0.5})
    assert Learning.of(folder).is_recorded, "an evaluation is no step"
    folder.append_metrics({"step": 1, "reward": 0.5})
    assert not Learning.of(folder).is_recorded
    folder.append_learned(1, [Account(trained=["a"])])
    assert Learning.of(folder).is_recorded


def test_a_run_that_an_older_version_began_is_known_as_one(folder: RunFolder) -> None:
    folder.append_metrics({"step": 1, "reward": 0.5})
    folder.append_metrics({"step": 2, "reward": 0.5})
    folder.append_learned(2, [Account(trained=["a"])])
    found = Learning.of(folder)
    assert (found.is_recorded, found.steps) == (False, {"a": [LearnedStep(2)]})


def test_a_run_whose_older_steps_were_rolled_back_is_known_as_one(folder: RunFolder) -> None:
    aside = folder.path / "set_aside" / "1"
    aside.mkdir(parents=True)
    (aside / "metrics.jsonl").write_bytes(b'{"step":1,"reward":0.5}\n')
    folder.learned_file.touch()  # a rollback writes it
    assert not Learning.of(folder).is_recorded
    (aside / LEARNED).touch()
    assert not Learning.of(folder).is_recorded


def test_reasons_of_sides_are_joined() -> None:
    assert joined([]) is None
    assert joined([("", "uncredited")]) == "uncredited"
    assert joined([("left", "refused"), ("right", "refused")]) == "refused"
    assert joined([("left", "uncredited"), ("right", "in no pair")]) == "left: uncredited; right: in no pair"


def test_a_damaged_line_of_the_metrics_hides_nothing_that_was_learned(folder: RunFolder) -> None:
    folder.metrics_file.write_bytes(b'{"step": 1}\n{broken\n')
    folder.append_learned(1, [Account(trained=["a"])])
    found = Learning.of(folder)
    assert (found.steps, found.is_recorded) == ({"a": [LearnedStep(1)]}, True)
