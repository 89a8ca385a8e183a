"""Determinism: chooses the decoding settings of a run's embedded engine. Does not import torch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leyden.core.engine.embedded.engine import EmbeddedConfig
    from leyden.core.trainer.config import RunConfig


def engine_config(config: "RunConfig") -> "EmbeddedConfig":
    """Return the engine's configuration for this run.

    A deterministic run decodes one sequence at a time and caches no prefixes. The number of rows of a matrix product,
    and the position in the prompt where it starts, decide how each row is rounded.
    """
    from leyden.core.engine.embedded.engine import EmbeddedConfig

    if not config.deterministic:
        return EmbeddedConfig(threads=config.threads, seed=config.seed)
    return EmbeddedConfig(threads=1, seed=config.seed, max_batch=1, prefix_cache_tokens=0, batch_wait_seconds=0.0)
