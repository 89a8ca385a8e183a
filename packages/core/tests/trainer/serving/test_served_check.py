"""The check after every update is of the weights, to rounding, whatever is trained and in whichever precision."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leyden.core.data.route import POLICY
from leyden.core.engine.base import EnginePrecision
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.errors import EngineError
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.probe import shake
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import synthetic_rollouts, tiny_policy
from leyden.core.trainer.serving.serving import Served, Serving

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
