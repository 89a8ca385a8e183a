"""How the embedded engine of a run decodes, so that a deterministic run can be the same again. Loads no torch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leyden.core.engine.embedded.engine import EmbeddedConfig
    from leyden.core.trainer.config import RunConfig


def engine_config(config: "RunConfig") -> "EmbeddedConfig":
    """The engine's configuration in this run.

    A deterministic run decodes one sequence at a time and keeps no prefixes: how many rows a matrix product has, and
    from where in a prompt it begins, decides how each row is rounded.
    """
    from leyden.core.engine.embedded.engine import EmbeddedConfig

    if not config.deterministic:
        return EmbeddedConfig(threads=config.threads, seed=config.seed)
    return EmbeddedConfig(threads=1, seed=config.seed, max_batch=1, prefix_cache_tokens=0, batch_wait_seconds=0.0)
