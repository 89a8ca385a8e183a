"""VERL plug-in: `import verl` loads this module in a run's processes, through `VERL_USE_EXTERNAL_MODULES`.

It imports little, because every VERL process loads it. It replaces VERL's trainers and training engines by Leyden's
subclasses when they are imported.
"""

from typing import Any

import wrapt


def _trainers_imported(trainers: Any) -> None:
    from leyden.core.algorithm.verl.inside_verl.verl_trainer import register_trainers

    register_trainers(trainers)


def _engines_imported(engines: Any) -> None:
    from leyden.core.algorithm.verl.inside_verl.adjusting_engine import register_engines

    register_engines(engines)


wrapt.register_post_import_hook(_engines_imported, "verl.workers.engine.fsdp.transformer_impl")
wrapt.register_post_import_hook(_trainers_imported, "verl.trainer.ppo.v1")
