from collections.abc import Mapping

from leyden.core.engine.base import Engine, EngineRecord
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.testing.engine_contract import EngineContract
from leyden.core.testing.tiny_models import tiny_model


class TestEmbeddedEngineContract(EngineContract):
    def make_engine(self) -> tuple[Engine, list[EngineRecord]]:
        records: list[EngineRecord] = []
        config = EmbeddedConfig(chunk_seconds=0.001, max_batch=16)
        model = tiny_model(seed=0, max_position_embeddings=320)
        return EmbeddedEngine(model, name="tiny", config=config, on_finish=records.append), records

    def new_weights(self) -> Mapping[str, object]:
        return dict(tiny_model(seed=1, max_position_embeddings=320).named_parameters())

    def in_flight(self, engine: Engine) -> int:
        assert isinstance(engine, EmbeddedEngine)
        return engine.in_flight
