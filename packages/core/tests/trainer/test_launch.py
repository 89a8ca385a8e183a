"""Settings that a run needs, and those that a resumed run may change."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.algorithm.verl.algorithm import VERL
from leyden.core.algorithm.verl.driver.owned_settings import CHANGEABLE
from leyden.core.errors import RewardError, RunError, UsageError
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.config import EvaluationSet, RunConfig
from leyden.core.trainer.launch import ResumeChanges, changed, check_files, check_needed, resume, validated
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.trainer import Trainer

LIMIT = "config.data.max_prompt_length"


def verl_run(**more: Any) -> RunConfig:
    settings = {"config": {"data": {"max_prompt_length": 4}}, "ray_address": "old:1", **more}
    return RunConfig(name="r", policy="p", algorithm="verl", algorithm_config=settings)


def test_nothing_is_changed_unasked() -> None:
    config = verl_run()
    assert changed(config, ResumeChanges()) == config


def test_changes_are_the_runs_from_then_on_and_the_number_of_steps_is_not(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, verl_run(), [{"question": "?"}], {})
    configs: list[RunConfig] = []

    def run_session(_: RunFolder, config: RunConfig) -> Any:
        configs.append(config)

    resume(tmp_path, "r", run_session, ResumeChanges(steps=9, settings={LIMIT: 512}))
    resume(tmp_path, "r", run_session)
    first, second = configs
    assert (first.steps, second.steps) == (9, verl_run().steps)
    assert first.algorithm_config == second.algorithm_config == {**verl_run().algorithm_config, LIMIT: 512}


def test_a_run_that_is_being_trained_is_not_changed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, verl_run(), [{"question": "?"}], {})
    before = folder.config_file.read_bytes()

    def run_session(_: RunFolder, config: RunConfig) -> Any:
        pytest.fail(f"a session begins: {config}")

    with folder.locked(), pytest.raises(RunError, match="being trained by another process"):
        resume(tmp_path, "r", run_session, ResumeChanges(settings={LIMIT: 512}))
    assert folder.config_file.read_bytes() == before


def test_the_runners_cluster_changes() -> None:
    config = RunConfig(
        name="r", policy="p", steps=3, runners=RunnerPlacement(where="ray", ray_address="old:1", ray_actors=2)
    )
    found = changed(config, ResumeChanges(ray_address="new:2"))
    assert found.runners == RunnerPlacement(where="ray", ray_address="new:2", ray_actors=2)


@pytest.mark.parametrize("address", ["new:2", "http://new:2"])
def test_a_cluster_that_nobody_would_join_is_refused(address: str) -> None:
    where = "local" if address == "new:2" else "ray"
    with pytest.raises(UsageError, match=r"ray-address (has no effect without runners ray|must be HOST:PORT or auto)"):
        changed(
            RunConfig(name="r", policy="p", runners=RunnerPlacement(where=where)), ResumeChanges(ray_address=address)
        )


def test_how_verl_is_started_and_what_fits_changes() -> None:
    given = {"ray_address": "new:2", "environment.NCCL_DEBUG": "INFO", LIMIT: 512}
    config = changed(verl_run(), ResumeChanges(settings=given))
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    assert isinstance(algorithm, VERL)
    assert (algorithm.config.ray_address, algorithm.config.variables) == ("new:2", {"NCCL_DEBUG": "INFO"})
    assert algorithm.context_length == 512 + 512 - 1


@pytest.mark.parametrize("key", ["config.data.train_batch_size", "config", "overrides", "data.max_prompt_length", "x"])
def test_what_verl_learns_stays(key: str) -> None:
    with pytest.raises(UsageError, match=f"--set {key} cannot change on --resume; these can: ray_address"):
        changed(verl_run(), ResumeChanges(settings={key: 1}))


def test_what_an_override_would_win_over_is_refused() -> None:
    with pytest.raises(UsageError, match=f"--set {LIMIT} has no effect on --resume: the run's overrides set data.max"):
        changed(verl_run(overrides=["data.max_prompt_length=8"]), ResumeChanges(settings={LIMIT: 512}))


def test_a_value_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"configuration of algorithm 'verl': \w+: must be text, not a whole number"):
        changed(verl_run(), ResumeChanges(settings={"ray_address": 8}))


def test_what_others_learn_by_stays() -> None:
    config = RunConfig(name="r", policy="p", algorithm_config={"learning_rate": 1e-4})
    with pytest.raises(
        UsageError, match=("--set learning_rate cannot change on --resume: a resumed run keeps the lightning_rl")
    ):
        changed(config, ResumeChanges(settings={"learning_rate": 1e-5}))


def test_verl_has_every_key_that_may_change() -> None:
    pytest.importorskip("verl")
    from leyden.core.algorithm.verl.verl_config import default_config

    config = default_config()
    for path in CHANGEABLE:
        node: Any = config
        for key in path.split("."):
            assert key in node, path
            node = node[key]


def test_a_run_whose_command_held_a_secret_is_not_resumed_with_a_mask(tmp_path: Path) -> None:
    key = "ghp_" + "a1" * 18
    command = ("env", f"GITHUB_TOKEN={key}", "true")
    folder = RunFolder.create(tmp_path, RunConfig(name="r", policy="p", agent=command), [{"question": "?"}], {})
    assert key not in folder.config_file.read_text()
    with pytest.raises(RunError, match=r"its command held a secret \('[^']*\*\*\*'\).*--env NAME"):
        resume(tmp_path, "r", lambda _, config: pytest.fail(f"a session begins: {config}"))


def test_fewer_steps_than_a_run_has_taken_are_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, RunConfig(name="r", policy="p", agent="a.py:agent"), [{"question": "?"}], {})
    folder.append_metrics({"step": 40})
    with pytest.raises(UsageError, match="run 'r' has already taken 40 steps; give --steps above 40 to go on"):
        resume(tmp_path, "r", lambda _, config: pytest.fail(f"a session begins: {config}"), ResumeChanges(steps=2))


@pytest.mark.parametrize("kind", ["policy", "frozen"])
def test_a_run_whose_policy_is_not_here_says_which_folder_its_paths_count_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given: dict[str, Any] = {"policy": "./policy"} if kind == "policy" else {"policy": "p", "frozen": {"f": "./policy"}}
    folder = RunFolder.create(tmp_path / "runs", RunConfig(name="r", agent="a.py:agent", **given), [{"q": "?"}], {})
    monkeypatch.chdir(tmp_path)
    message = (
        rf"there is no policy folder \./policy, counted from the current folder {tmp_path}: the run's agent, "
        "reward and initial policy must be there. Start the command in their folder, or copy them"
    )
    with pytest.raises(UsageError, match=message):
        resume(tmp_path / "runs", "r", lambda _, config: pytest.fail(f"a session begins: {config}"))
    assert folder.session_error() is None


@pytest.mark.parametrize("what", ["agent", "reward", "input"])
def test_a_run_whose_files_are_not_here_says_which_folder_their_paths_count_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (tmp_path / "here.py").touch()
    given: dict[str, Any] = {"agent": "here.py:agent", what: "code/there.py:thing"}
    folder = RunFolder.create(tmp_path / "runs", RunConfig(name="r", policy="p", **given), [{"q": "?"}], {})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=rf"code/there\.py does not exist, counted from the current folder {tmp_path}: "
    ):
        resume(tmp_path / "runs", "r", lambda _, config: pytest.fail(f"a session begins: {config}"))
    assert folder.session_error() is None


def test_a_run_of_a_python_object_is_resumed_only_with_an_object(tmp_path: Path) -> None:
    config = RunConfig(name="py1", policy="p", agent="<builtins.function>")
    folder = RunFolder.create(tmp_path, config, [{"question": "?"}], {})
    message = (
        r"the agent of run 'py1' is a Python object, builtins\.function, which this command does not have: continue "
        r"the run in its own program with trainer\.resume\(agent, 'py1'\)"
    )
    with pytest.raises(UsageError, match=message):
        resume(tmp_path, str(folder.path), lambda _, config: pytest.fail(f"a session begins: {config}"))
    with pytest.raises(UsageError, match=message):
        Trainer(runs=tmp_path, quiet=True).resume("agent.py:agent", "py1")
    assert folder.session_error() is None
    begun: list[str] = []

    def beginning(_: RunFolder, config: RunConfig) -> Any:
        begun.append(config.name)

    resume(tmp_path, "py1", beginning, has_agent=True)
    assert begun == ["py1"]


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("mysql://host/runs", "stores of the kind mysql:// are not supported"),
        ("runs/base/store.db", "'runs/base/store.db' is not a store's URI"),
        (" ", "' ' is not a store's URI"),
        ("sqlite:///", "names no file"),
        ("shard:///", "names no file"),
        ("postgresql://me@host", "names no database"),
        ("postgresql://me:p@ss@host/runs", "write @ as %40"),
        ("redis://host/runs", "the database 'runs' of the Redis store is not a number"),
        ("memory://?budget=much", "only \\?budget=BYTES may follow"),
    ],
)
def test_a_run_does_not_begin_with_a_uri_that_no_store_has(store: str, says: str) -> None:
    config = RunConfig(name="r", policy="p", agent="a:a", reward="r:r", store=store)
    with pytest.raises(UsageError, match=says):
        validated(config, ["x"])


def test_the_files_of_a_new_runs_agent_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").touch()
    config = RunConfig(name="r", policy="p", agent="a.py:a", reward="code/rew.py:score")
    with pytest.raises(
        UsageError, match=rf"^code/rew\.py does not exist, counted from the current folder {tmp_path}: "
    ):
        check_files(config)
    check_files(msgspec.structs.replace(config, runners=RunnerPlacement(where="remote")))
    check_files(msgspec.structs.replace(config, reward="code.rew:score"))


def test_without_steps_a_run_needs_held_out_tasks_and_no_algorithm() -> None:
    given: dict[str, Any] = {"name": "r", "policy": "p", "agent": "a:a", "steps": 0}
    held_out = (EvaluationSet(name="val", source="val.jsonl"),)
    tasks: list[Any] = [{"question": "?"}]
    check_needed(RunConfig(**given, held_out=held_out), tasks)
    with pytest.raises(UsageError, match="steps 0 only evaluates a policy, and there are no held-out tasks"):
        check_needed(RunConfig(**given), tasks)
    algorithms: list[dict[str, Any]] = [
        {"algorithm": "dpo"},
        {"algorithm_config": {"advantage": "gae", "critic": "own"}},
    ]
    for more in algorithms:
        with pytest.raises(UsageError, match="leave the algorithm and its critic out"):
            check_needed(RunConfig(**given, **more, held_out=held_out), tasks)


def test_the_error_that_ends_a_session_is_kept_until_the_next_one_begins(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, verl_run(), [{"question": "?"}], {})
    seen: list[str | None] = []

    def failing(_: RunFolder, __: RunConfig) -> Any:
        raise RewardError("reward score raised ValueError")

    def working(folder: RunFolder, _: RunConfig) -> Any:
        seen.append(folder.session_error())

    with pytest.raises(RewardError):
        resume(tmp_path, "r", failing)
    assert folder.session_error() == "reward score raised ValueError"
    resume(tmp_path, "r", working)
    assert (seen, folder.session_error()) == ([None], None)


def test_a_second_process_that_is_refused_is_not_why_a_run_ended(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, verl_run(), [{"question": "?"}], {})

    def refused(folder: RunFolder, _: RunConfig) -> Any:
        with folder.locked():
            pass

    with folder.locked(), pytest.raises(RunError):
        resume(tmp_path, "r", refused)
    assert folder.session_error() is None
