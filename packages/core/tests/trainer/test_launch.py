"""What a run that is gone on with may be told anew, and what is refused."""

from typing import Any

import pytest

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.algorithm.verl.algorithm import VERL
from leyden.core.algorithm.verl.rules import CHANGEABLE
from leyden.core.errors import UsageError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.launch import Changes, changed
from leyden.core.trainer.runners import Runners

LIMIT = "config.data.max_prompt_length"


def verl_run(**more: Any) -> RunConfig:
    settings = {"config": {"data": {"max_prompt_length": 4}}, "ray_address": "old:1", **more}
    return RunConfig(name="r", policy="p", algorithm="verl", algorithm_config=settings)


def test_nothing_is_changed_unasked() -> None:
    config = verl_run()
    assert changed(config, Changes()) == config


def test_steps_and_the_runners_cluster_change() -> None:
    config = RunConfig(name="r", policy="p", steps=3, runners=Runners(where="ray", ray_address="old:1", ray_actors=2))
    found = changed(config, Changes(steps=5, ray_address="new:2"))
    assert found.steps == 5
    assert found.runners == Runners(where="ray", ray_address="new:2", ray_actors=2)


@pytest.mark.parametrize("address", ["new:2", "http://new:2"])
def test_a_cluster_that_nobody_would_join_is_refused(address: str) -> None:
    where = "local" if address == "new:2" else "ray"
    with pytest.raises(UsageError, match=r"ray-address (has no effect without runners ray|is HOST:PORT or auto)"):
        changed(RunConfig(name="r", policy="p", runners=Runners(where=where)), Changes(ray_address=address))


def test_how_verl_is_started_and_what_fits_changes() -> None:
    given = {"ray_address": "new:2", "environment.NCCL_DEBUG": "INFO", LIMIT: 512}
    config = changed(verl_run(), Changes(settings=given))
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    assert isinstance(algorithm, VERL)
    assert (algorithm.config.ray_address, algorithm.config.variables) == ("new:2", {"NCCL_DEBUG": "INFO"})
    assert algorithm.context_length == 512 + 512 - 1


@pytest.mark.parametrize("key", ["config.data.train_batch_size", "config", "overrides", "data.max_prompt_length", "x"])
def test_what_verl_learns_stays(key: str) -> None:
    with pytest.raises(UsageError, match=f"--set {key} cannot change on --resume: only ray_address"):
        changed(verl_run(), Changes(settings={key: 1}))


def test_what_an_override_would_win_over_is_refused() -> None:
    with pytest.raises(UsageError, match=f"--set {LIMIT} has no effect on --resume: the run's overrides say data.max"):
        changed(verl_run(overrides=["data.max_prompt_length=8"]), Changes(settings={LIMIT: 512}))


def test_a_value_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"configuration of algorithm 'verl': Expected `str \| null`, got `int`"):
        changed(verl_run(), Changes(settings={"ray_address": 8}))


def test_what_others_learn_by_stays() -> None:
    config = RunConfig(name="r", policy="p", algorithm_config={"learning_rate": 1e-4})
    with pytest.raises(UsageError, match="--set learning_rate cannot change on --resume: lightning_rl goes on as"):
        changed(config, Changes(settings={"learning_rate": 1e-5}))


def test_verl_has_every_key_that_may_change() -> None:
    pytest.importorskip("verl")
    from leyden.core.algorithm.verl.bridge import default_config

    for path in CHANGEABLE:
        node: Any = default_config()
        for key in path.split("."):
            assert key in node, path
            node = node[key]
