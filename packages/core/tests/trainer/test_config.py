from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.data.encoding.provider_model import ProviderModel
from leyden.core.data.route import parse_routes
from leyden.core.data.sampling import Sampling
from leyden.core.errors import RunError, UsageError
from leyden.core.trainer.config import EvaluationSet, RunConfig, check_name, load_config, save_config
from leyden.core.trainer.serving.endpoint import ModelEndpoint
from leyden.core.trainer.trainer import Trainer

FULL = RunConfig(
    name="full",
    experiment="rates",
    agent="a.py:agent",
    policy="p",
    reward="r.py:score",
    input="i.py:make",
    hooks=("h.py:Notes",),
    span_match="^node write",
    attribute_match={"gen_ai.workflow.name": "research"},
    predicate="p.py:wanted",
    held_out=(EvaluationSet(name="val", source="val.jsonl"),),
    sampling=Sampling(temperature=0.7, stop=("x",)),
    algorithm_config={"learning_rate": 1e-4},
)


def test_a_config_survives_its_file(tmp_path: Path) -> None:
    save_config(FULL, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == FULL


def test_a_password_in_a_url_is_masked(tmp_path: Path) -> None:
    save_config(msgspec.structs.replace(FULL, policy="https://me:secret@host/model"), tmp_path / "config.yaml")
    assert "secret" not in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "x" * 65, "a b"])
def test_a_name_that_cannot_be_a_folder_is_refused(name: str) -> None:
    with pytest.raises(RunError, match="must match"):
        check_name(name)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("experiment", "two words", "experiment name 'two words' must match"),
        ("steps", -1, "steps must not be negative, got -1"),
        ("keep_checkpoints", 0, "keep-checkpoints must be at least 1, not 0"),
        ("device", "tpu", "device must be cpu or cuda, not 'tpu'"),
        ("group_size", 1, "group-size must be at least 2"),
        ("timeout_seconds", 0.0, "timeout must be positive"),
        ("span_match", "(", "span_match '\\(' is not a regular expression"),
        ("attribute_match", {"app.x": "("}, "attribute_match app.x"),
        ("eval_every", -1, "eval-every must not be negative"),
        ("patience", 2, "--patience counts evaluations and has no effect without --eval-every"),
        ("patience", 0, "patience must be at least 1"),
        ("tracker", ("tensorboard", "ledger"), "unknown tracker 'ledger'"),
        ("sampling", Sampling(temperature=0.0), "temperature above 0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(field: str, value: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        msgspec.structs.replace(FULL, **{field: value})


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_truncation_needs_the_engine_that_records_it(fields: dict[str, Any]) -> None:
    truncated = msgspec.structs.replace(FULL, sampling=Sampling(**fields))
    with pytest.raises(UsageError, match="only the embedded engine records truncation"):
        msgspec.structs.replace(truncated, engine="vllm", deterministic=False)


def test_only_the_embedded_engine_has_a_precision() -> None:
    rounded = RunConfig(name="x", agent="a", policy="p", engine_precision="bfloat16")
    with pytest.raises(UsageError, match="--engine-precision applies only to the embedded engine"):
        msgspec.structs.replace(rounded, engine="vllm")
    with pytest.raises(UsageError, match="remove --engine-precision"):
        RunConfig(name="x", agent="a", endpoint=ModelEndpoint(url="http://127.0.0.1:1/v1"), engine_precision="bfloat16")


def test_evaluations_between_steps_need_held_out_tasks() -> None:
    with pytest.raises(UsageError, match="eval-every has no effect without held-out tasks"):
        msgspec.structs.replace(FULL, held_out=(), eval_every=2)


@pytest.mark.parametrize("tracker", ["null", "tensorboard", "[tensorboard, mlflow]"])
def test_trackers_are_none_one_or_several(tmp_path: Path, tracker: str) -> None:
    (tmp_path / "config.yaml").write_text(f"name: x\nagent: a\npolicy: p\ntracker: {tracker}\n")
    assert load_config(tmp_path / "config.yaml").name == "x"


def test_a_folder_without_config_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        load_config(tmp_path / "config.yaml")
    (tmp_path / "study.json").touch()
    with pytest.raises(RunError, match=f"it is a study of leyden tune, whose runs are named with --runs {tmp_path}$"):
        load_config(tmp_path / "config.yaml")


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: x\nagent: a\npolicy: p\nstepz: 3\n")
    with pytest.raises(RunError, match="stepz"):
        load_config(tmp_path / "config.yaml")


TWO = {"planner": "p", "reporter": "r"}


@pytest.mark.parametrize(
    ("policy", "routes", "says"),
    [
        ({}, [], "no policy is given"),
        (
            TWO,
            [],
            "a call that matches no route would reach no policy: end with --route to=NAME, or name one of planner",
        ),
        (TWO, ["node=planner,to=planner", "node=reporter,to=reporter"], "would reach no policy"),
        (TWO, ["to=planner"], "no route reaches policy 'reporter'"),
        (TWO, ["to=planner", "node=reporter,to=reporter"], "no route reaches policy 'reporter'"),
        ({"policy": "p", "reporter": "r"}, [], "no route reaches policy 'reporter'"),
        (TWO, ["node=judge,to=judge", "to=planner"], "a route goes to 'judge', which is none of planner, reporter"),
        ({"provider": "p"}, ["to=provider"], "a policy cannot be called 'provider'"),
        ({"a/b": "p"}, ["to=a/b"], "policy name 'a/b' must match"),
        ({"x-adapter": "p"}, ["to=x-adapter"], "not end in -adapter"),
        ({"critic": "p"}, ["to=critic"], "policy 'critic' is both trained and frozen"),
    ],
)
def test_policies_that_no_call_reaches_or_calls_that_reach_none_are_refused(
    policy: dict[str, str], routes: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        RunConfig(name="r", agent="a", policy=policy, routes=parse_routes(routes), frozen={"critic": "c"})


def test_a_route_may_name_a_providers_model(tmp_path: Path) -> None:
    routes = parse_routes(["agent=judge,to=anthropic/claude-x", "agent=critic,to=a/b", "node=n,to=gemini/*"])
    config = RunConfig(name="r", agent="a", policy="p", routes=routes, frozen={"a/b": "c"})
    assert config.providers == {
        "anthropic/claude-x": ProviderModel("anthropic", "claude-x"),
        "gemini/*": ProviderModel("gemini"),
    }
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    with pytest.raises(UsageError, match=r"a route goes to 'anthropic', .*, or give PROVIDER/MODEL"):
        RunConfig(name="r", agent="a", policy="p", routes=parse_routes(["agent=judge,to=anthropic"]))


@pytest.mark.parametrize(
    ("policy", "routes", "usual"),
    [
        ("p", [], "policy"),
        (TWO, ["node=planner,to=planner", "to=reporter"], "reporter"),
        (TWO, ["node=planner,to=planner", "node=reporter,to=reporter", "to=provider"], "planner"),
        ({"reporter": "r", "policy": "p"}, ["node=reporter,to=reporter"], "policy"),
    ],
)
def test_calls_that_no_route_fits_have_a_policy(
    policy: str | dict[str, str], routes: list[str], usual: str, tmp_path: Path
) -> None:
    config = RunConfig(name="r", agent="a", policy=policy, routes=parse_routes(routes))
    assert config.usual == usual
    assert config.has_names == (policy != "p")
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_the_largest_number_of_workers_is_not_below_the_smallest() -> None:
    assert RunConfig(name="run", policy="p", workers=2, max_workers=2).most_workers == 2
    assert RunConfig(name="run", policy="p", workers=3).most_workers == 3
    with pytest.raises(UsageError, match="max-workers 1 is below workers 2; workers is the smallest number"):
        RunConfig(name="run", policy="p", workers=2, max_workers=1)
    with pytest.raises(UsageError, match="max-workers must be at least 1, not 0"):
        RunConfig(name="run", policy="p", max_workers=0)


def test_a_live_object_has_one_process() -> None:
    def agent(task: dict[str, str]) -> float:
        return 1.0

    with pytest.raises(UsageError, match="max_workers needs an agent given by import string"):
        Trainer(policy="p", max_workers=2).fit(agent, [{"question": "?"}])
