from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from leyden.core.engine.base import Engine, EngineRecord, ModelInfo
from leyden.core.engine.vllm.local_engine import VllmEngine
from leyden.core.engine.vllm.replicas import ReplicaEngine
from leyden.core.testing.engine_contract import EngineContract
from leyden.core.testing.servers.vllm_double import CONTEXT, VOCAB, DoubleServer, VllmDouble
from leyden.core.testing.tiny_models import tiny_model


class TestVllmEngineContract(EngineContract):
    @pytest.fixture(autouse=True)
    def policy(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "policy"
        cast(Any, tiny_model(max_position_embeddings=CONTEXT)).save_pretrained(self.folder)

    def make_engine(self) -> tuple[Engine, list[EngineRecord]]:
        records: list[EngineRecord] = []
        return VllmEngine(self.folder, name="tiny", server=DoubleServer(), on_finish=records.append), records

    def new_weights(self) -> Mapping[str, object]:
        return {"model.embed_tokens.weight": torch.ones(2, 2)}

    def in_flight(self, engine: Engine) -> int:
        assert isinstance(engine, VllmEngine)
        return engine.in_flight


class TestReplicaEngineContract(EngineContract):
    @pytest.fixture(autouse=True)
    async def doubles(self) -> AsyncIterator[list[VllmDouble]]:
        self.replicas = [VllmDouble(), VllmDouble()]
        for replica in self.replicas:
            await replica.start()
        yield self.replicas
        for replica in self.replicas:
            await replica.stop()

    def make_engine(self) -> tuple[Engine, list[EngineRecord]]:
        records: list[EngineRecord] = []

        async def write(weights: Mapping[str, object], version: int) -> None:
            for replica in self.replicas:
                replica.salt = version

        model = ModelInfo(name="tiny", context_length=CONTEXT - 1, vocab_size=VOCAB)
        engine = AddsWhenStarted(model, write=write, on_finish=records.append)
        engine.urls = [replica.url for replica in self.replicas]
        return engine, records

    def new_weights(self) -> Mapping[str, object]:
        return {}

    def in_flight(self, engine: Engine) -> int:
        assert isinstance(engine, ReplicaEngine)
        return engine.in_flight


class AddsWhenStarted(ReplicaEngine):
    urls: list[str]

    async def start(self) -> None:
        await super().start()
        for url in self.urls:
            await self.add(url)
