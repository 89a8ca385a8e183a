from pathlib import Path

import pytest

from leyden.core.data.resources import LLM, PromptTemplate
from leyden.core.errors import RunError, UsageError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder import folder as folder_module
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport

CONFIG = RunConfig(name="one", agent="a.py:agent", policy="p")


def make(runs: Path) -> RunFolder:
    return RunFolder.create(runs, CONFIG, [{"q": 1}], {"val": [{"q": 2}]})


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    made = make(tmp_path)
    for name in ("one", str(made.path)):
        folder, config = RunFolder.open(tmp_path, name)
        assert (folder.path, config) == (made.path, CONFIG)
    assert made.tasks() == [{"q": 1}]
    assert made.tasks("val") == [{"q": 2}]


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(RunError, match=r"leyden train --resume one"):
        make(tmp_path)


def test_a_run_that_was_killed_while_it_was_made_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        (half_made,) = tmp_path.glob(".*")
        assert (half_made / "tasks.jsonl").exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "save_config", killed)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    make(tmp_path)


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder.path / ".writing-old-x" / "policy").mkdir(parents=True)
    with folder.locked():
        assert not list(folder.path.glob(".writing-*"))


def test_a_place_where_no_run_can_be_is_answered_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be made"):
        make(tmp_path / "file")


def test_an_unknown_run_is_answered_with_those_there_are(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(RunError, match=r"no run 'two'.*runs there: one"):
        RunFolder.open(tmp_path, "two")


def test_only_one_process_trains_a_run(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with folder.locked(), pytest.raises(RunError, match="another process"), RunFolder(folder.path).locked():
        raise AssertionError("locked twice")
    with folder.locked():
        assert folder.path.exists()


def test_rewinding_drops_later_steps_and_a_line_cut_off(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for step in (0, 1, 2, 3):
        folder.append_metrics({"step": step})
    with folder.metrics_file.open("ab") as file:
        file.write(b'{"step": 4, "rew')
    assert [line["step"] for line in folder.metrics()] == [0, 1, 2, 3]
    folder.rewind_metrics(2)
    folder.append_metrics({"step": 3, "again": True})
    assert [line["step"] for line in folder.metrics()] == [0, 1, 2, 3]


def test_evaluations_that_will_be_repeated_are_dropped(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for line in ({"step": 0, "held_out": "val"}, {"step": 1, "reward": 0.5}, {"step": 1, "held_out": "val"}):
        folder.append_metrics(line)
    folder.rewind_metrics(1)
    assert len(folder.metrics()) == 3
    folder.rewind_metrics(1, evaluations=False)
    assert folder.metrics() == [{"step": 0, "held_out": "val"}, {"step": 1, "reward": 0.5}]


def test_resources_are_kept_without_keys(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert folder.resources() == {}
    folder.save_resources(
        {"llm": LLM(endpoint="http://x/v1", model="m", api_key="sk-1"), "p": PromptTemplate(template="{a}")}
    )
    assert "sk-1" not in (folder.path / "resources.json").read_text()
    assert folder.resources()["p"] == PromptTemplate(template="{a}")


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.write_report(RunReport(name="one", seed=3))
    assert '"seed": 3' in folder.report_file.read_text()
    assert not list(folder.path.glob("*.tmp"))


def test_a_store_that_does_not_exist_has_no_run_and_its_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"there is no store sqlite:///{tmp_path}/x.db"):
        RunFolder.open(tmp_path, f"sqlite:///{tmp_path}/x.db#calc")
    with pytest.raises(UsageError) as raised:
        RunFolder.open(tmp_path, "postgresql://me:secret@127.0.0.1:9/db#calc")
    assert "secret" not in str(raised.value)


def test_the_last_metrics_of_a_long_file_are_whole(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert folder.last_metrics() == []
    folder.metrics_file.write_text("".join(f'{{"step": {step}}}\n' for step in range(1000)))

    found = [line["step"] for line in folder.last_metrics(size=100)]

    assert found == list(range(1000 - len(found), 1000))
    assert 5 <= len(found) <= 8


def test_a_damaged_line_is_named_by_its_file_and_number(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.metrics_file.write_bytes(b'{"step": 1}\n\n{broken\n{"step": 2}\n{"st')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 3 cannot be read: "):
        folder.metrics()
    folder.learned_file.write_bytes(b"\xff\n")
    with pytest.raises(RunError, match=r"learned\.jsonl, line 1 cannot be read: "):
        folder.learned()
