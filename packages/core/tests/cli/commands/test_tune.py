"""`leyden tune`: one line for what cannot be searched, and what a study shows, with runs that are scripted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted_studies import BASE, TASKS, Script, ScriptedProcesses, Settings, begin_run, end_run, evaluate

from leyden.core.cli import main as cli
from leyden.core.cli.run_file import read_run_file
from leyden.core.experiments import execution as experiments
from leyden.core.experiments.processes import Processes
from leyden.core.experiments.record import Records
from leyden.core.tuning import execution

pytestmark = pytest.mark.integration  # dozens of commits to a database each
SEARCH = ["--config", "run.yaml", "--search", "learning_rate=1e-4..1e-2:log"]
Tune = Callable[..., int]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Run `leyden tune` with runs that score what a script says."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(json.dumps(task) + "\n" for task in TASKS)
    for name in ("train", "val", "test"):
        Path(f"{name}.jsonl").write_text(rows)
    sets = [{"name": name, "source": f"{name}.jsonl"} for name in ("val", "test")]
    Path("run.yaml").write_text(yaml.safe_dump({**BASE, "name": "mine", "held_out": sets}))

    def run(*options: str, script: Script = steeper) -> int:
        def make(records: Records) -> Processes:
            return ScriptedProcesses(records, script)

        for module in (experiments, execution):
            monkeypatch.setattr(module, "Processes", make)
            monkeypatch.setattr(module, "PAUSE", 0.0)
        return cli.run(["tune", *SEARCH, *options])

    return run


def steeper(settings: Settings) -> list[float]:
    """A higher learning rate than the default's is much better."""
    return [0.25, 0.25, 0.25, 0.95 if settings["algorithm_config"]["learning_rate"] > 1e-3 else 0.5]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--search", "lerning_rate=0..1"], "--search lerning_rate: neither a run nor the algorithm lightning_rl has"),
        (["--search", "learning_rate=0..1"], "--search learning_rate: it is given twice"),
        (["--search", "group_size=4..16"], "--search group_size=4: group_size: must be a whole number, not a number; "),
        (["--search", "group_size=1..4:int"], "--search group_size=1: group-size must be at least 2, not 1"),
        (["--search", "credit=uniform,unifrom"], "--search credit=unifrom: unknown credit assignment 'unifrom'"),
        (["--search", "workers=a,b"], "--search workers=a: workers: must be a whole number, not text"),
        (
            ["--search", "tasks=train.jsonl,nope.jsonl"],
            "--search tasks=nope.jsonl: task file nope.jsonl does not exist",
        ),
        (["--search", "policy=./nope,./no"], "--search policy=./nope: there is no policy folder ./nope"),
        (["--measure", "vall"], "--measure: there is no held-out set 'vall'; did you mean val?"),
        (["--seeds", "0,0"], "--seeds: give at least one whole number"),
        (["--seeds", "x"], "--seeds takes whole numbers separated by commas, not 'x'"),
        (["--steps", "0"], "steps 0 trains nothing"),
        (["--confirm-seeds", "0"], "--confirm-seeds: the study has trained with seed 0"),
        (["--confirm", "tset.jsonl"], "task file tset.jsonl does not exist"),
        (["--val", "nothing.jsonl"], "task file nothing.jsonl does not exist"),
        (["--name", "a/b"], "--name must match"),
        (["--config", "no.yaml"], "--config: there is no file no.yaml"),
        (["--only-report"], "there is no study run-tune in runs yet"),
    ],
)
def test_what_cannot_work_is_one_line_and_nothing_is_begun(
    tune: Tune, capsys: pytest.CaptureFixture[str], options: list[str], line: str
) -> None:
    assert tune(*options) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"leyden: {line}")
    assert not Path("runs").exists()


def test_a_search_is_validated_and_nothing_is_begun(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--name", "s", "--validate") == 0
    assert capsys.readouterr().out == "study s can begin: its search and its settings are valid\n"
    assert not Path("runs").exists()

    assert tune("--name", "s", "--trials", "1") == 0
    assert tune("--name", "s", "--validate") == 0
    assert tune("--name", "s", "--seeds", "7", "--validate") == 2
    assert "was begun with other settings" in capsys.readouterr().err


def test_combinations_that_a_run_refuses_are_named_together(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--search", "loop=sync,async", "--search", "deterministic=false,true") == 2
    assert "--search loop=async --search deterministic=true: a deterministic run cannot" in capsys.readouterr().err


def test_a_study_shows_its_trials_and_the_best_settings(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--trials", "4", "--no-prune", "--name", "s") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Study s: mean reward on val after the last step, seed 0" in shown
    assert "default: 50.0 %" in shown
    assert "this is optimistic: the trial is the best of 4 on the same tasks of val" in shown
    assert "to measure it anew against the default: --confirm SET, or --confirm-seeds SEEDS" in shown
    assert "importance: it takes 8 finished trials with different scores, and there are 4" in shown
    assert "leyden train --config runs/s/best.yaml --name s-best" in shown
    best = read_run_file(Path("runs/s/best.yaml"))
    assert best["algorithm_config"]["learning_rate"] > 1e-3
    assert best["held_out"] == [{"name": name, "source": f"{name}.jsonl"} for name in ("val", "test")]
    assert "name" not in best
    assert Path("runs/s/slices.png").read_bytes().startswith(b"\x89PNG")
    run = yaml.safe_load(Path("runs/s/trial-1-seed-0/config.yaml").read_text())
    assert run["held_out"] == [{"name": "val", "source": "val.jsonl"}]
    assert (run["eval_every"], run["evaluate_sampled"], run["check"], run["experiment"]) == (1, False, False, "s")


def test_a_program_receives_the_progress(
    tune: Tune, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEYDEN_PROGRESS", "json")
    assert tune("--trials", "2", "--no-prune", "--confirm-seeds", "1") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    counts = [(one["progress"]["done"], one["progress"]["total"]) for one in map(json.loads, lines)]
    assert counts[:3] == [(0, 2), (1, 2), (2, 2)]
    assert len(counts) == 3 or counts[-1] == (2, 2)


def test_a_confirmation_trains_both_anew_on_the_other_set(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--trials", "4", "--name", "s", "--no-prune", "--confirm", "test") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured anew on test with seeds 1, 2, 3: best" in shown
    assert "confirmed: the whole interval is above 0" in shown
    names = {path.name for path in Path("runs/s").glob("confirm-*")}
    (best,) = {name.rpartition("-seed-")[0] for name in names} - {"confirm-0"}
    assert names == {f"{arm}-seed-{seed}" for arm in (best, "confirm-0") for seed in (1, 2, 3)}
    assert tune("--trials", "4", "--name", "s", "--no-prune", "--confirm", "test", "--json", script=unused) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["trial"] * 4 + ["study"]
    study = events[-1]
    assert (study["default"], study["optimistic"], study["confirmation"]["seeds"]) == (0, True, [1, 2, 3])
    assert study["confirmation"]["difference"]["low"] > 0
    assert study["difference"]["mean"] == pytest.approx(events[study["best"]]["score"] - events[0]["score"])


def unused(settings: Settings) -> str:
    raise AssertionError(f"{settings['name']} is run again")


def test_a_lead_that_a_new_measurement_does_not_show_is_refuted(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    def lucky(settings: Settings) -> list[float]:
        """Other settings than the default are better with seed 0 alone."""
        is_default = settings["algorithm_config"]["learning_rate"] == 1e-3
        return [0.5, 0.5, 0.5, 0.5 if is_default else 0.9 if settings["seed"] == 0 else 0.1]

    assert tune("--trials", "2", "--name", "s", "--confirm-seeds", "7,8", script=lucky) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured anew on val with seeds 7, 8: best 10.0 %, default 50.0 %" in shown
    assert "refuted: the whole interval is below 0, so the default is better" in shown
    assert "the tasks are those that chose the trial: another set would say more" in shown


def test_no_better_setting_is_a_result(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    def flat(settings: Settings) -> list[float]:
        return [0.5, 0.5, 0.5, 0.5]

    assert tune("--trials", "3", "--name", "s", "--confirm", "test", script=flat) == 0
    assert "no trial of 3 is better than the default, which has 50.0 %" in capsys.readouterr().out
    assert not list(Path("runs/s").glob("confirm-*"))


def test_a_past_run_with_the_default_settings_is_trial_0(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate, score in (("a", 5e-3, 0.4), ("b", 1e-3, 0.6)):
        settings: dict[str, Any] = {**BASE, "algorithm_config": {"learning_rate": rate}}
        run = begin_run(Path("runs", name), settings)
        evaluate(run, 4, score)
        end_run(run, 4)
    assert tune("--trials", "1", "--name", "s", "--json") == 0
    said = capsys.readouterr()
    assert "past runs: 2 became 2 trials; 0 were left out" in said.err
    trials = [json.loads(line) for line in said.out.splitlines()][:-1]
    assert [(one["default"], one["past"], one["score"]) for one in trials[:2]] == [
        (True, ["runs/b"], 0.6),
        (False, ["runs/a"], 0.4),
    ]
    assert [one["number"] for one in trials if not one["past"]] == [2]
    assert "past runs" not in said.out
    assert tune("--trials", "1", "--name", "s", "--json", script=unused) == 0
    assert "past runs" not in capsys.readouterr().err


def test_another_search_in_the_same_folder_is_refused(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--trials", "1", "--name", "s") == 0
    for options, change in (
        (["--seeds", "1"], r"seeds was [0], and is now [1]"),
        (["--search", "group_size=4,8"], "search.group_size was nothing, and is now '4,8'"),
        (["--steps", "5"], "settings.steps was 4, and is now 5"),
    ):
        capsys.readouterr()
        assert tune("--name", "s", *options) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"leyden: study s in runs/s was begun with other settings: {change}; give another")
    Path("train.jsonl").write_text('{"question": "x"}\n')
    assert tune("--name", "s") == 2
    assert "train.jsonl has another content" in capsys.readouterr().err


def test_a_folder_that_is_no_study_is_left_alone(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/config.yaml").write_text("")
    assert tune("--name", "mine") == 2
    assert "runs/mine exists and is no study; give another --name" in capsys.readouterr().err


def test_trials_that_all_fail_end_with_their_reason(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    def failing(settings: Settings) -> str:
        return "no such agent"

    assert tune("--name", "s", script=failing) == 1
    assert "leyden: every trial failed, the last one because: no such agent" in capsys.readouterr().err
    assert tune("--name", "s", "--only-report") == 0
    assert "no trial has finished, so there is no best one" in capsys.readouterr().out
