"""`--config`: the settings of a run from a file, over which the command line's options win."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from leyden.core.cli import main as cli
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import PromptTemplate
from leyden.core.data.route import Route
from leyden.core.data.sampling import Sampling
from leyden.core.errors import UsageError
from leyden.core.trainer import launch
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.config import EvaluationSet, RunConfig, save_config
from leyden.core.trainer.serving.provider import ProviderEndpoint

ALL = RunConfig(
    name="whole",
    experiment="all",
    policy={"a": "folder/a", "b": "folder/b"},
    prompts={"asked": PromptTemplate(template="{{ question }}\n", engine="jinja")},
    prompt_edits={
        "prompts": PromptEdits(components=(PromptComponent(name="s", role="system", text="a", new_text="b"),))
    },
    agent="agent.py:agent",
    reward="reward.py:score",
    reward_weights={"style": 0.5},
    input="input.py:make",
    hooks=("hooks.py:Hook",),
    tasks="train.jsonl",
    held_out=(EvaluationSet(name="easy", source="val.jsonl"),),
    steps=7,
    tasks_per_step=3,
    group_size=5,
    seed=11,
    sampling=Sampling(temperature=0.7),
    agent_match="solver",
    span_match="plan",
    attribute_match={"kind": "x.*"},
    predicate="select.py:trained",
    workers=2,
    concurrency=9,
    isolation="process",
    runners=RunnerPlacement(where="ray", ray_address="auto", ray_cpus=0.5, allow_hosts=("me.internal",)),
    timeout_seconds=31.0,
    max_attempts=4,
    evaluate_sampled=False,
    record_tokens=False,
    eval_every=2,
    patience=3,
    check=False,
    checkpoint_every=4,
    keep_checkpoints=6,
    threads=2,
    max_workers=8,
    engine_precision="bfloat16",
    store="sqlite:////data/runs.db",
    artifacts="/data/copies",
    tracker=("tensorboard",),
    algorithm_config={"learning_rate": 0.25, "kl_loss": 0.5},
    routes=(Route(to="b", agent="judge"), Route(to="a")),
    provider=ProviderEndpoint(url="https://api.openai.com/v1", key_env="EMBEDDINGS_KEY"),
    update="drain",
    record_within=0.5,
    engine_log=True,
)
"""Another value than the default in each field that a file can give."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of `ALL`, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "val", "other"):
        Path(f"{name}.jsonl").write_text(json.dumps({"question": name}) + "\n")
    for name in ("agent", "reward", "other"):
        Path(f"{name}.py").touch()
    return tmp_path


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, files: Path) -> list[tuple[RunConfig, Any, Any]]:
    """The configuration, tasks and held-out sets of each run that began."""
    found: list[tuple[RunConfig, Any, Any]] = []

    def begin(runs: Path, config: RunConfig, rows: Any, held_out: Any, sit: Any) -> Any:
        found.append((config, rows, held_out))
        raise UsageError("this is far enough")

    monkeypatch.setattr(launch, "begin", begin)
    return found


def test_every_field_differs_from_its_default() -> None:
    usual = RunConfig(name="x", policy="y")
    alike = {name for name in RunConfig.__struct_fields__ if getattr(usual, name) == getattr(ALL, name)}
    assert alike == {
        *("env", "engine", "vllm", "device", "deterministic", "algorithm", "frozen", "sides", "acting", "endpoint"),
    }


def test_a_runs_own_configuration_begins_the_same_run(files: Path, begun: list[tuple[RunConfig, Any, Any]]) -> None:
    save_config(ALL, files / "config.yaml")
    assert cli.run(["train", "--config", "config.yaml"]) == 2
    [(config, rows, held_out)] = begun
    assert config == ALL
    assert (rows, held_out) == ([{"question": "train"}], {"easy": [{"question": "val"}]})


def test_options_win_over_the_file(files: Path, begun: list[tuple[RunConfig, Any, Any]]) -> None:
    save_config(ALL, files / "config.yaml")
    options = [
        *("other.py:agent", "--name", "again", "--steps", "25", "--tasks", "other.jsonl", "--val", "other.jsonl"),
        *("--temperature", "1", "--max-tokens", "64", "--ray-cpus", "2"),
        *("--set", "kl_loss=0.75", "--check", "--sampled-eval"),
        *("--reward-weight", "content=2", "--timeout", "120", "--route", "agent=x,to=b", "--route", "to=a"),
    ]
    assert cli.run(["train", "--config", "config.yaml", *options]) == 2
    [(config, rows, held_out)] = begun
    assert config == msgspec.structs.replace(
        ALL,
        agent="other.py:agent",
        name="again",
        steps=25,
        tasks="other.jsonl",
        held_out=(EvaluationSet(name="other", source="other.jsonl"),),
        sampling=Sampling(temperature=1, max_tokens=64),
        runners=msgspec.structs.replace(ALL.runners, ray_cpus=2),
        algorithm_config={"learning_rate": 0.25, "kl_loss": 0.75},
        check=True,
        evaluate_sampled=True,
        reward_weights={"content": 2},
        timeout_seconds=120,
        routes=(Route(to="b", agent="x"), Route(to="a")),
    )
    assert (rows, held_out) == ([{"question": "other"}], {"other": [{"question": "other"}]})


def test_a_file_may_hold_a_few_settings(files: Path, begun: list[tuple[RunConfig, Any, Any]]) -> None:
    Path("run.yaml").write_text("policy: ./policy\ntasks: train.jsonl\nalgorithm_config:\n  learning_rate: 0.5\n")
    assert cli.run(["train", "agent.py:agent", "--config", "run.yaml", "--name", "few"]) == 2
    assert cli.run(["train", "agent.py:agent", "--policy", "./policy", "--tasks", "train.jsonl", "--name", "few",
                    "--learning-rate", "0.5"]) == 2  # fmt: skip
    assert begun[0] == begun[1]


@pytest.mark.parametrize("number", ["6e-4", "6E-04", "0.6e-3", "6.e-4", "+.6e-3", "6.0e-4", "0.0006"])
def test_numbers_are_written_as_in_python(files: Path, begun: list[tuple[RunConfig, Any, Any]], number: str) -> None:
    Path("run.yaml").write_text(f"policy: p\ntasks: train.jsonl\nalgorithm_config: {{learning_rate: {number}}}\n")
    assert cli.run(["train", "agent.py:agent", "--config", "run.yaml"]) == 2
    assert begun[0][0].algorithm_config == {"learning_rate": 0.0006}


def test_another_algorithm_takes_none_of_the_files_options(
    files: Path, begun: list[tuple[RunConfig, Any, Any]]
) -> None:
    Path("run.yaml").write_text("policy: ./policy\ntasks: train.jsonl\nalgorithm_config: {advantage: rloo}\n")
    assert cli.run(["train", "agent.py:agent", "--config", "run.yaml", "--algorithm", "sft", "--set", "keep=best"]) == 2
    assert (begun[0][0].algorithm, begun[0][0].algorithm_config) == ("sft", {"keep": "best"})


def test_a_command_in_the_file_is_run_as_on_the_command_line(
    files: Path, begun: list[tuple[RunConfig, Any, Any]]
) -> None:
    Path("run.yaml").write_text("policy: ./policy\ntasks: train.jsonl\nagent: [python, agent.py]\n")
    assert cli.run(["train", "--config", "run.yaml", "--name", "command"]) == 2
    assert begun[0][0].agent == ("python", "agent.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stepz: 3", "run.yaml: there is no setting stepz; did you mean steps?"),
        ("runners: {wher: ray}", "run.yaml: there is no setting runners.wher; did you mean runners.where?"),
        ("select: 3", "run.yaml: there is no setting select\n"),
        ("learning_rate: 1e-4", "write it in algorithm_config, as algorithm_config: {learning_rate: ...}"),
        ("max-staleness: 1", "write it in algorithm_config"),
        ("temperature: 1", "write it in sampling, as sampling: {temperature: ...}"),
        ("sampling: {max_tokens: 0}", "max-tokens must be at least 1, not 0"),
        ("ray_actors: 2", "write it in runners, as runners: {ray_actors: ...}"),
        ("val: val.jsonl", "write held_out, a list of {name: NAME, source: FILE}"),
        ("set: {}", "write algorithm_config, a mapping"),
        ("steps: many", "run.yaml: steps: must be a whole number, not text"),
        ("held_out: [val.jsonl]", "run.yaml: held_out[0]: must be a mapping, not text"),
        ("sampling: {temperature: warm}", "run.yaml: sampling.temperature: must be a number, not text"),
        ("runners: ray", "run.yaml: runners: must be a mapping, not text"),
        ("runners: 3", "run.yaml: runners: must be a mapping, not a whole number"),
        ("sampling: 0.5", "run.yaml: sampling: must be a mapping, not a number"),
        ("vllm: [x]", "run.yaml: vllm: must be a mapping, not a list"),
        ("algorithm_config: 3", "run.yaml: algorithm_config: must be a mapping, not a whole number"),
        ("steps: -1", "steps must not be negative"),
        ("policy: ./my***", "run.yaml: policy held a secret, which the file does not keep"),
        ("agent: [no-such-program-here]", "no-such-program-here"),
        ("agent: <my.module.Agent>", "run.yaml: agent <my.module.Agent> was an object of a Python program"),
        ("actor_rollout_ref: {}", "actor_rollout_ref belongs to VERL's configuration, which needs --backend verl"),
        ("- steps", "run.yaml must hold keys and values, not a list"),
        ("# nothing [", "run.yaml is empty; write settings as KEY: VALUE, one a line"),
        ("steps: [", "run.yaml is not YAML"),
        ("tasks: nowhere.jsonl", "nowhere.jsonl does not exist"),
        ("1: 2", "there is no setting 1"),
        ("algorithm_config: {learning_rate: .inf}", "learning_rate"),
        ("algorithm_config: {learning_rat: 1}", "did you mean learning_rate?; it has learning_rate, schedule, "),
        ("prompt_edits: prompts.yaml", "run.yaml: prompt_edits: must be a mapping, not text"),
        ("prompt_edits: {x: {}}", "run.yaml: prompt_edits.x must hold a list `components`"),
        (
            "prompt_edits: {x: {components: [{name: a, role: system, text: b, new: c}]}}",
            "no setting prompt_edits.x.components[0].new",
        ),
        ("env: [MY_KEY]", "--env has no effect without a command"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], begun: list[Any], text: str, says: str
) -> None:
    given = {"policy": "./policy", "tasks": "train.jsonl", "agent": "agent.py:agent"}
    named = text.partition(":")[0]
    Path("run.yaml").write_text(
        text if text.startswith("-") or text.endswith("[") else
        "".join(f"{name}: {value}\n" for name, value in given.items() if name != named) + text
    )  # fmt: skip
    assert cli.run(["train", "--config", "run.yaml", "--name", "odd"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1, error
    assert not begun


def test_settings_are_validated_and_nothing_is_started(
    files: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "policy: ./policy\ntasks: train.jsonl\nagent: agent.py:agent\nsteps: 3\n"
    Path("run.yaml").write_text(text)
    command = ["train", "--config", "run.yaml", "--name", "new", "--validate"]
    Path("agent.py").rename("moved.py")
    assert cli.run(command) == 2
    assert "agent.py does not exist" in capsys.readouterr().err
    Path("moved.py").rename("agent.py")

    assert cli.run(command) == 0
    assert capsys.readouterr().out == "run new can begin: its settings and tasks are valid\n"
    Path("run.yaml").write_text(text.replace("3", "-3"))
    assert cli.run(command) == 2
    assert "steps must not be negative, got -3" in capsys.readouterr().err
    Path("run.yaml").write_text(text)
    Path("runs/new").mkdir(parents=True)
    assert cli.run(command) == 2
    assert (
        "run 'new' exists in runs; resume it with `leyden train --resume new`, or choose another --name"
        in capsys.readouterr().err
    )
    assert (begun, list(Path("runs").rglob("*.*"))) == ([], [])


def test_a_key_that_is_given_twice_is_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("policy: ./policy\nrunners:\n  where: local\n  max_workers: 1\n  where: ray\n")
    assert cli.run(["train", "--config", "run.yaml", "--name", "new"]) == 2
    assert "run.yaml has the key where twice, in lines 3 and 5; remove one" in capsys.readouterr().err
    Path("run.yaml").write_text("common: &common {max_workers: 1}\nrunners: {where: local, where: ray}\n")
    assert cli.run(["train", "--config", "run.yaml", "--name", "new"]) == 2
    assert "run.yaml has the key where twice, in lines 2 and 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("routes: [{agnt: judge, to: provider}]", "there is no setting routes[0].agnt; did you mean routes[0].agent?"),
        ("held_out: [{name: v, source: val.jsonl, limit: 2}]", "there is no setting held_out[0].limit"),
        ("held_out: [{name: a/b, source: val.jsonl}]", "held-out set 'a/b': a name must not be empty, contain /"),
        ("isolation: maybe", "isolation: invalid enum value 'maybe'; it must be auto or process or shared"),
        ("algorithm_config: {learning_rate: fast}", "learning_rate: must be a number, not text"),
    ],
)
def test_a_wrong_setting_within_another_is_refused(
    files: Path, capsys: pytest.CaptureFixture[str], setting: str, says: str
) -> None:
    Path("run.yaml").write_text(f"policy: p\nagent: module:agent\ntasks: train.jsonl\n{setting}\n")
    assert cli.run(["train", "--config", "run.yaml", "--name", "new", "--validate"]) == 2
    assert says in capsys.readouterr().err


def test_resuming_takes_no_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text(yaml.safe_dump({"steps": 3}))
    assert cli.run(["train", "--resume", "x", "--config", "run.yaml"]) == 2
    assert "--config cannot change on --resume" in capsys.readouterr().err
