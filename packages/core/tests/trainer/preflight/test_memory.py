"""The estimate against what torch really keeps, and the limits of a machine against files as the kernel writes them."""

from pathlib import Path
from unittest.mock import patch

import pytest

from leyden.core.algorithm.lightning_rl import LightningRLConfig
from leyden.core.engine.base import EnginePrecision
from leyden.core.engine.embedded import linear
from leyden.core.policy.size import PolicySize
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.preflight import machine
from leyden.core.trainer.preflight.machine import free_memory
from leyden.core.trainer.preflight.memory import MemoryEstimate, MemoryNeed, check_memory, gibibytes, memory_need
from leyden.core.trainer.preflight.run import measure_memory

CONFIG = RunConfig(name="r", agent="a", policy="p")
NEED = MemoryNeed(certain={"weights": 600 << 20}, likely={"activations": 400 << 20})


@pytest.mark.parametrize(
    ("free", "status"), [(599 << 20, "failure"), (600 << 20, "warning"), (1000 << 20, "ok"), (None, "warning")]
)
def test_what_cannot_fit_fails_and_what_may_not_warns(free: int | None, status: str) -> None:
    result = check_memory(NEED, free, CONFIG)
    assert result.status == status
    assert "weights 600 MiB" in result.seen


def test_sizes_are_told_as_people_read_them() -> None:
    assert (gibibytes(3 << 30), gibibytes(512 << 20)) == ("3.0 GiB", "512 MiB")


def test_the_tightest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    assert free_memory("cpu") == 400


@pytest.mark.parametrize("limit", ["max\n", str((1 << 63) - 4096)])
def test_a_group_without_a_limit_sets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("700\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       3 kB\n")
    assert free_memory("cpu") == 3072


def test_without_the_kernels_files_it_is_all_the_memory_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "none")
    assert (free_memory("cpu") or 0) > 1 << 28


def test_several_policies_need_the_memory_of_each_but_are_updated_one_at_a_time(policy: Path) -> None:
    options, size = LightningRLConfig(), PolicySize.of(policy)
    one, two = (memory_need(CONFIG, [options] * count, [size] * count, []) for count in (1, 2))
    assert two.least == 2 * one.least > 0
    activations = next(key for key in one.likely if key.startswith("activations"))
    assert two.likely[activations] == one.likely[activations] > 0
    frozen = memory_need(CONFIG, [options], [size], [size])
    assert frozen.least == one.least + size.weights


@pytest.mark.parametrize(
    ("precision", "packs", "copies"), [("float32", False, 4), ("float32", True, 8), ("int8", True, 7)]
)
def test_further_copies_of_an_engines_weights_count(
    policy: Path, precision: EnginePrecision, packs: bool, copies: int
) -> None:
    size = PolicySize.of(policy)
    config = RunConfig(name="r", agent="a", policy="p", engine_precision=precision)
    with patch.object(linear, "packs_weights", return_value=packs):
        need = memory_need(config, [LightningRLConfig()], [size], [])
    assert need.certain["the engine's copy"] == copies * size.parameters


def test_need_and_what_is_left_are_one_line() -> None:
    on_gpu = RunConfig(name="r", agent="a", policy="p", device="cuda")
    assert (
        MemoryEstimate(need=NEED, free=3 << 30).line(CONFIG)
        == "memory: about 1000 MiB needed, 3.0 GiB left on this machine"
    )
    assert MemoryEstimate(need=NEED, free=None).line(on_gpu).endswith("needed, free memory unknown on the GPU")


def test_a_policy_is_measured_by_its_configuration_alone(policy: Path, tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((policy / name).read_bytes())
    found = measure_memory(RunConfig(name="r", agent="a", policy=str(tmp_path)))
    assert found.need.least == 20 * PolicySize.of(policy).parameters
    assert found.free is not None and found.free > 0
