import shlex
from importlib.metadata import version
from pathlib import Path

import pytest

from leyden.core.cli import main as cli
from leyden.core.cli.commands.quickstart import find_example, quickstart_command
from leyden.core.cli.options import default_name, read_held_out, read_policies, read_settings
from leyden.core.errors import CheckFailed, EngineError, NothingToLearn, TrainingError, UsageError
from leyden.core.trainer import launch
from leyden.core.trainer.config import NAME
from leyden.core.trainer.event_loop import Terminated


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UsageError("the file is missing"), 2, "leyden: the file is missing\n"),
        (TrainingError("the loss is not finite"), 1, "leyden: the loss is not finite\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, says: str
) -> None:
    def fail(arguments: list[str], prog_name: str, standalone_mode: bool) -> None:
        raise error

    monkeypatch.setattr(cli, "command_line", lambda: fail)
    assert cli.run(["train"]) == code
    assert capsys.readouterr().err == says


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"leyden {version('leyden-core')}, Python 3.")


def test_without_arguments_the_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    assert capsys.readouterr().out.startswith("Usage: leyden")


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str], prog_name: str, standalone_mode: bool) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "command_line", lambda: fail)
    with pytest.raises(ZeroDivisionError):
        cli.run(["train"])


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run([])
    assert "quickstart" in "".join(capsys.readouterr())


def test_missing_options_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "a.py:agent"]) == 2
    assert "missing --tasks, --policy" in capsys.readouterr().err


def test_verls_own_configuration_may_name_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verl = tmp_path / "verl.yaml"
    verl.write_text("actor_rollout_ref: {model: {path: org/model}}")
    assert cli.run(["train", "a.py:agent", "--backend", "verl", "--config", str(verl)]) == 2
    assert "missing --tasks;" in capsys.readouterr().err


def test_resume_takes_no_other_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "a.py:agent", "--resume", "old"]) == 2
    assert "--resume takes agent and tasks from the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "named"),
    [(["--seed", "3"], "--seed"), (["--no-check"], "--check"), (["--ray-actors", "2"], "--ray-actors")],
)
def test_resume_ignores_no_option(capsys: pytest.CaptureFixture[str], option: list[str], named: str) -> None:
    assert cli.run(["train", "--resume", "old", *option]) == 2
    assert capsys.readouterr().err.startswith(f"leyden: {named} cannot change on --resume; give only --steps, ")


def test_resume_hands_on_what_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[object] = []

    def note(*given: object) -> None:
        changes.append(given[3])
        raise UsageError("no more is wanted")

    monkeypatch.setattr(launch, "resume", note)
    options = ["--steps", "4", "--ray-address", "a:1", "--device", "cpu", "--set", "b.c=2"]
    assert cli.run(["train", "--resume", "old", *options]) == 2
    assert changes == [launch.ResumeChanges(steps=4, ray_address="a:1", device="cpu", settings={"b.c": 2})]


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (EngineError("no replica is left"), 1, "failed; continue with: leyden train --resume old --runs {}\n"),
        (KeyboardInterrupt(), 130, "stopped; continue with: leyden train --resume old --runs {}\n"),
        (Terminated(), 143, "stopped; continue with: leyden train --resume old --runs {}\n"),
        (UsageError("no such option"), 2, "leyden: no such option\n"),
        (NothingToLearn("no reward"), 2, "failed; continue with: leyden train --resume old --runs {}\n"),
        (CheckFailed("it cannot learn"), 1, "leyden: it cannot learn\n"),
    ],
)
def test_how_to_go_on_is_said_where_that_can_help(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: BaseException,
    code: int,
    says: str,
) -> None:
    def fail(*_: object) -> None:
        raise error

    (tmp_path / "old").mkdir()
    monkeypatch.setattr(launch, "resume", fail)
    assert cli.run(["train", "--resume", "old", "--runs", str(tmp_path)]) == code
    assert capsys.readouterr().err.lstrip("\n").startswith(says.format(tmp_path))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give either --policy"),
        (["--policy", "p", "--endpoint", "http://x/v1"], "give either --policy"),
        (["--policy", "p", "--model", "m"], "--model is the name of a model at an --endpoint"),
        (["--policy", "p", "-n", "0"], "--count must be at least 1"),
    ],
)
def test_a_dry_run_needs_exactly_one_who_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], says: str
) -> None:
    (tmp_path / "t.jsonl").write_text('{"question": "?"}\n')
    assert cli.run(["dev", "a.py:agent", "--tasks", str(tmp_path / "t.jsonl"), *options]) == 2
    assert says in capsys.readouterr().err


def test_the_quickstart_prints_the_command_it_is_short_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["quickstart", "--print-command", "--name", "mine", "--steps", "3", "--seed", "7"]) == 0
    printed = shlex.split(capsys.readouterr().out)
    assert printed == ["leyden", *quickstart_command(find_example(), name="mine", steps=3, seed=7)]
    assert printed[1] == "train"
    for path in (part for part in printed if part.startswith("examples/")):
        assert Path(path.partition(":")[0]).exists(), path


def test_the_quickstart_needs_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="checkout of the repository"):
        find_example()


def test_settings_are_json_where_they_can_be() -> None:
    assert read_settings(["a=1", "b=x", "c=[1]", "d=e=f"]) == {"a": 1, "b": "x", "c": [1], "d": "e=f"}
    with pytest.raises(UsageError, match="key=value"):
        read_settings(["learning_rate"])


@pytest.mark.parametrize("agent", ["examples/calc/agent.py:agent", "my.module:agent", "über/ágent.py:a", "..:x"])
def test_a_run_is_named_after_its_agent(agent: str) -> None:
    assert NAME.fullmatch(default_name(agent))


def test_two_held_out_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "val.jsonl").write_text('{"q": 1}\n')
    with pytest.raises(UsageError, match="two held-out files are called 'val'"):
        read_held_out([{"name": "val", "source": str(tmp_path / folder / "val.jsonl")} for folder in "ab"])


def test_a_policy_is_given_alone_or_each_by_its_name() -> None:
    assert read_policies(["some/folder"]) == "some/folder"
    assert read_policies(["runs/rate=1/policy"]) == "runs/rate=1/policy"
    assert read_policies(["planner=a/b", "reporter=c=d"]) == {"planner": "a/b", "reporter": "c=d"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["a", "b"], "several policies need names"),
        (["planner=a", "b"], "not 'planner=a b'"),
        (["planner=a", "planner=b"], "each name once"),
        (["planner="], "name=policy"),
        (["=a"], "name=policy"),
    ],
)
def test_policies_without_a_name_or_with_the_same_are_refused(given: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_policies(given)
