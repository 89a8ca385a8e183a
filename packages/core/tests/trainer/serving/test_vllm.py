import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.route import POLICY
from leyden.core.engine.base import Engine
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.errors import EngineError, TrainingError, UsageError
from leyden.core.policy.options import LoraOptions
from leyden.core.testing.policies import tiny_policy, with_adapters
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.trainer.config import RunConfig, load_config, save_config
from leyden.core.trainer.context.run_context import RunContext
from leyden.core.trainer.context.run_journal import RunJournal
from leyden.core.trainer.monitoring.display import make_display
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.serving import Served, Serving
from leyden.core.trainer.serving.vllm import server_options

NOTHING: Any = None
LORA = {"lora": {"rank": 12}}
STAGES = {"stages": [{"algorithm": "lightning_rl", "steps": 1, "config": LORA}] * 2}


def config(**changes: Any) -> RunConfig:
    given: dict[str, Any] = {"name": "run", "policy": "folder", "engine": "vllm", **changes}
    return RunConfig(**given)


@pytest.mark.parametrize(
    ("changes", "rank"),
    [
        ({}, 0),
        ({"algorithm_config": LORA}, 12),
        ({"algorithm_config": {"lora": {}}}, 16),
        ({"algorithm": "stages", "algorithm_config": STAGES}, 12),
    ],
)
def test_the_server_has_room_for_the_adapters_that_are_trained(changes: dict[str, Any], rank: int) -> None:
    assert server_options(config(**changes), trained=True).lora_rank == rank
    assert server_options(config(**changes), trained=False).lora_rank == 0


def test_too_little_room_is_refused() -> None:
    small = config(vllm=VllmOptions(lora_rank=8), algorithm_config=LORA)
    with pytest.raises(UsageError, match=r"vllm\.lora_rank is 8, but adapters of rank 12 are trained"):
        server_options(small, trained=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "embedded", "vllm": VllmOptions(cache_gib=2)}, "no effect without --engine vllm"),
        ({"deterministic": True}, "a deterministic run needs --engine embedded"),
        ({"threads": 2}, "remove --threads 2"),
        ({"vllm": VllmOptions(transfer="ipc")}, "device is cpu"),
        ({"vllm": VllmOptions(sleep=True)}, "device is cpu"),
        (
            {"vllm": VllmOptions(sleep=True), "device": "cuda", "algorithm_config": {"loop": "async"}},
            "loop=async needs them: set loop=sync",
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(**changes)


def test_the_choice_rests_with_the_run(tmp_path: Path) -> None:
    chosen = config(vllm=VllmOptions(cache_gib=2, arguments=("--block-size", "16")))
    save_config(chosen, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == chosen


class TakesAdapters(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__([])
        self.saved: list[set[str]] = []
        self.begun_again: list[int] = []

    @property
    def takes_adapters(self) -> bool:
        return True

    async def begin_again(self, version: int) -> None:
        self.begun_again.append(version)

    async def update_adapters(self, save: Any, version: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder))
            self.saved.append({path.name for path in Path(folder).iterdir()})


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_adapters_go_to_engines_that_take_them_and_weights_to_others(lora: LoraOptions | None) -> None:
    model = tiny_policy() if lora is None else with_adapters(tiny_policy(), lora)
    takes, other = TakesAdapters(), ScriptedEngine([])
    for engine in (takes, other):
        serving = Serving(NOTHING, NOTHING, {POLICY: Served(engine, [1, 2, 3])}, NOTHING)
        with pytest.raises(EngineError, match="does not serve the trained weights"):
            await serving.serve({POLICY: model}, 4)
    assert other.versions == [4]
    assert takes.versions == ([4] if lora is None else [])
    assert len(takes.saved) == (0 if lora is None else 1)
    assert all({"adapter_config.json", "adapter_model.safetensors"} <= names for names in takes.saved)


async def test_an_engine_of_adapters_goes_back_without_whole_weights() -> None:
    takes, other = TakesAdapters(), ScriptedEngine([])
    for engine in (takes, other):
        serving = Serving(NOTHING, NOTHING, {POLICY: Served(engine, [1, 2, 3])}, NOTHING)
        with pytest.raises(EngineError, match="does not serve the trained weights"):
            await serving.serve({POLICY: tiny_policy()}, 0, first=True)
    assert (takes.begun_again, takes.versions, other.versions) == ([0], [], [0])


async def test_an_engine_without_room_for_adapters_says_so() -> None:
    engine: Engine = ScriptedEngine([])
    assert not engine.takes_adapters
    with pytest.raises(EngineError, match="ScriptedEngine can serve only whole weights"):
        await engine.update_adapters(lambda folder: None, 1)
    with pytest.raises(EngineError, match="ScriptedEngine has no stored weights"):
        await engine.begin_again(0)


class Sleeps(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__([])
        self.awake = True

    @asynccontextmanager
    async def asleep(self) -> AsyncGenerator[None]:
        self.awake = False
        try:
            yield
        finally:
            self.awake = True


def journal(folder: Path, config: RunConfig) -> RunJournal:
    return RunJournal(RunFolder(folder), config, make_display(quiet=True, json=False), NOTHING, NOTHING)


@pytest.mark.parametrize("fails", [False, True])
async def test_all_engines_sleep_while_the_trainer_computes(tmp_path: Path, *, fails: bool) -> None:
    engines = [Sleeps(), Sleeps()]
    serving = Serving(NOTHING, NOTHING, {POLICY: Served(engines[0], [1, 2])}, NOTHING, frozen=engines[1:])
    context = RunContext(config(), journal(tmp_path, config()), serving, NOTHING)

    def update() -> list[bool]:
        if fails:
            raise TrainingError("it diverged")
        return [engine.awake for engine in engines]

    if fails:
        with pytest.raises(TrainingError, match="it diverged"):
            await context.compute("update", update)
    else:
        assert await context.compute("update", update) == [False, False]
    assert all(engine.awake for engine in engines)


@pytest.mark.parametrize("loop", ["one_off", "async"])
async def test_a_loop_that_collects_meanwhile_is_refused(tmp_path: Path, loop: Any) -> None:
    sleeping = config(vllm=VllmOptions(sleep=True), device="cuda")
    context = RunContext(sleeping, journal(tmp_path, sleeping), NOTHING, NOTHING)
    with pytest.raises(UsageError, match=f"loop={loop} needs them"):
        async with context.collecting(LoopKind(loop=loop, max_staleness=1)):
            raise AssertionError("it collects")
