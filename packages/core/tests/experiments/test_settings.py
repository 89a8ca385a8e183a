"""Overrides on top of a run file, and how changed settings and files are named."""

from pathlib import Path

from leyden.core.experiments.settings import (
    changed_file,
    difference,
    overridden,
    references,
    used_files,
    with_folders,
)


def test_keys_of_an_algorithm_join_and_other_settings_are_replaced() -> None:
    base = {"steps": 5, "algorithm_config": {"learning_rate": 1.0, "credit": "uniform"}, "held_out": [1, 2]}
    found = overridden(base, {"algorithm_config": {"credit": "discounted"}, "held_out": [3]})
    assert found == {
        "steps": 5,
        "algorithm_config": {"learning_rate": 1.0, "credit": "discounted"},
        "held_out": [3],
    }
    assert base["algorithm_config"] == {"learning_rate": 1.0, "credit": "uniform"}


def test_another_algorithm_starts_without_the_options_of_the_first() -> None:
    base = {"algorithm_config": {"credit": "uniform"}}
    assert overridden(base, {"algorithm": "sft"})["algorithm_config"] == {}
    assert overridden(base, {"algorithm": "lightning_rl"})["algorithm_config"] == {"credit": "uniform"}


def test_folders_of_preparations_are_put_in_and_patterns_are_left_alone() -> None:
    settings = {
        "policy": {"a": "$warm", "b": "$warm/last"},
        "algorithm_config": {"spans": "sqlite:///$expert/store.db", "rules": [{"matches": "^[0-9]+$"}]},
        "agent_match": "write$rewrite",
    }
    assert references(settings) == ["warm", "expert"]
    found = with_folders(settings, {"warm": Path("runs/w"), "expert": Path("runs/e")})
    assert found["policy"] == {"a": "runs/w", "b": "runs/w/last"}
    assert found["algorithm_config"] == {
        "spans": "sqlite:///runs/e/store.db",
        "rules": [{"matches": "^[0-9]+$"}],
    }
    assert found["agent_match"] == "write$rewrite"


def test_the_first_setting_that_differs_is_named_with_both_values() -> None:
    assert difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}}) is None
    assert difference({"b": {"c": 2}}, {"b": {"c": "x"}}) == "b.c was 2, and is now 'x'"
    assert difference({}, {"seed": 3}) == "seed was nothing, and is now 3"


def test_files_are_compared_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("1")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy/model.safetensors").write_text("w")
    settings = {"agent": f"{tmp_path}/agent.py:agent", "policy": str(tmp_path / "policy"), "tasks": "missing.jsonl"}
    before = used_files(settings)
    assert set(before) == {f"{tmp_path}/agent.py", f"{tmp_path}/policy/model.safetensors"}
    assert changed_file(before, used_files(settings)) is None
    (tmp_path / "agent.py").write_text("22")
    assert changed_file(before, used_files(settings)) == f"{tmp_path}/agent.py has another content"
