"""Ray capacity: describes what VERL waits for in a Ray cluster that has no room for it.

VERL requests groups of processors and GPUs from Ray, one bundle for each of its processes, and waits without a time
limit. This module imports neither VERL nor Ray.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]
COUNTED = ("CPU", "GPU")
"""Resources whose numbers in the cluster are reported."""


def missing_capacity(groups: Sequence[Sequence[Resources]], free: Resources, whole: Resources) -> str | None:
    """Return a message about what VERL waits for; None if it waits for nothing.

    `groups` holds the bundles of each group that has no room. `free` is the unused part of the cluster's resources
    `whole`.
    """
    if not groups:
        return None
    asked = Counter(_listed(bundle) for bundles in groups for bundle in bundles)
    wanted = ", ".join(f"{count} × ({bundle})" for bundle, count in sorted(asked.items()))
    has = ", ".join(f"{name} {free.get(name, 0.0):g} of {whole.get(name, 0.0):g}" for name in COUNTED)
    return (
        f"VERL waits for free resources in the Ray cluster: it requests {wanted}, with each group on one node; free: "
        f"{has}"
    )


def _listed(bundle: Resources) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(bundle.items()))
