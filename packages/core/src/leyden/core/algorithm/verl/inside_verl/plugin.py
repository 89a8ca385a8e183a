"""What `import verl` loads in the processes of a run, named in `VERL_USE_EXTERNAL_MODULES`.

Light, since every process of VERL's loads it: the trainers are Leyden's from when one imports them.
"""

from typing import Any

import wrapt


def _trainers_imported(trainers: Any) -> None:
    from leyden.core.algorithm.verl.inside_verl.verl_trainer import register_trainers

    register_trainers(trainers)


wrapt.register_post_import_hook(_trainers_imported, "verl.trainer.ppo.v1")
