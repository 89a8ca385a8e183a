"""The check after every update is of the weights, to rounding, whatever is trained and in whichever precision."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from leyden.core.data.route import POLICY
from leyden.core.engine.base import EnginePrecision
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.errors import EngineError
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.probe import shake
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import synthetic_rollouts, tiny_policy
from leyden.core.trainer.serving.serving import SERVED_GAP, Served, Serving, prompt_gap

IDS = [5, 1, 40, 7, 7, 23, 60, 2, 11, 9]
NOTHING: Any = None


@asynccontextmanager
async def serving(gateway: Any = NOTHING, precision: EnginePrecision = "float32") -> AsyncGenerator[Serving]:
    engine = EmbeddedEngine(tiny_policy().module, name="tiny", config=EmbeddedConfig(precision=precision))
    await engine.start()
    try:
        yield Serving(NOTHING, NOTHING, {POLICY: Served(engine, IDS)}, gateway)
    finally:
        await engine.close()


def trained(**options: Any) -> PolicyModel:
    updater = Updater(tiny_policy(), UpdateConfig(learning_rate=3e-3, **options))
    updater.step(synthetic_rollouts(4, 64))
    return updater.model


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_what_was_trained_is_served(precision: Any, lora: LoraOptions | None) -> None:
    async with serving() as served:
        gaps = await served.serve({POLICY: trained(precision=precision, lora=lora)}, 1)
        assert gaps[POLICY] < 1e-5
        assert served.policies[POLICY].engine.version == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_old_weights_are_noticed(precision: Any, lora: LoraOptions | None) -> None:
    async with serving() as served:
        with pytest.raises(EngineError, match="the engine does not serve the trained weights"):
            await served.check(POLICY, trained(precision=precision, lora=lora))


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
async def test_a_rounded_engine_serves_what_was_trained_up_to_rounding(precision: Any) -> None:
    async with serving(precision=precision) as served:
        gaps = await served.serve({POLICY: trained()}, 1)
        assert 1e-5 < gaps[POLICY] < 0.15


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
async def test_a_rounded_engine_that_serves_another_model_is_noticed(precision: Any) -> None:
    other = trained()
    shake(other, 1.0)
    async with serving(precision=precision) as served:
        with pytest.raises(EngineError, match="the engine does not serve the trained weights"):
            await served.check(POLICY, other)


def amplifying() -> PolicyModel:
    """Weights with which rounding errors are far larger than usual, as in some steps of a fine-tuning."""
    model = tiny_policy()
    with torch.no_grad():
        for name, weight in model.module.named_parameters():
            if "norm" not in name:
                weight.mul_(15.0)
    return model


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
async def test_rounding_errors_that_the_model_itself_amplifies_do_not_end_a_run(precision: Any) -> None:
    model = amplifying()
    async with serving(precision=precision) as served:
        gap = (await served.serve({POLICY: model}, 1))[POLICY]
        own = prompt_gap(score(model.in_precision("bfloat16"), IDS), score(model, IDS), precision)
        assert gap > SERVED_GAP[precision]
        assert own > SERVED_GAP["bfloat16"] / 2


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
async def test_another_model_is_noticed_although_the_model_amplifies_rounding_errors(precision: Any) -> None:
    async with serving(precision=precision) as served:
        with pytest.raises(EngineError, match="the engine does not serve the trained weights"):
            await served.check(POLICY, amplifying())


class Differing:
    """Engine in float32 that scores as the model does, but for some positions."""

    precision, version = "float32", 1

    def __init__(self, model: PolicyModel, apart: dict[int, float]) -> None:
        self.model, self.apart = model, apart

    async def score(self, ids: list[int]) -> list[float]:
        return [one + self.apart.get(n, 0.0) for n, one in enumerate(score(self.model, ids))]


def differing(apart: dict[int, float]) -> Serving:
    engine: Any = Differing(tiny_policy(), apart)
    return Serving(NOTHING, NOTHING, {POLICY: Served(engine, IDS * 5)}, NOTHING)


@pytest.mark.parametrize("apart", [{}, {7: 0.009}, {3: -0.002, 30: 0.004}])
async def test_few_positions_may_differ_more_in_full_precision(apart: dict[int, float]) -> None:
    gap = await differing(apart).check(POLICY, tiny_policy())
    assert gap == pytest.approx(max((abs(one) for one in apart.values()), default=0.0), abs=1e-6)


@pytest.mark.parametrize("apart", [{7: 0.011}, {7: float("nan")}, {7: float("inf")}, {1: 0.001, 9: 0.001, 30: 0.001}])
async def test_one_large_or_many_small_differences_in_full_precision_are_noticed(apart: dict[int, float]) -> None:
    with pytest.raises(EngineError, match="the engine does not serve the trained weights"):
        await differing(apart).check(POLICY, tiny_policy())


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_the_gap_of_coarser_precisions_leaves_out_single_tokens_but_none_that_is_no_number(precision: Any) -> None:
    zeros = [0.0] * 40
    assert prompt_gap([*zeros[2:], -9.0, 9.0], zeros, precision) == 0
    assert prompt_gap([0.2] * 40, zeros, precision) == pytest.approx(0.2)
    assert prompt_gap([0.3], [0.0], precision) == pytest.approx(0.3)
    assert not math.isfinite(prompt_gap([math.nan, *zeros[1:]], zeros, precision))
    assert prompt_gap([-math.inf, *zeros[1:]], zeros, precision) == math.inf
