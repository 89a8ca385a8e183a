"""`waiting`: what VERL waits for in a Ray cluster without room for it. Imports neither.

VERL asks Ray for groups of processors and GPUs, one bundle for each of its processes, and waits for them for ever.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]
COUNTED = ("CPU", "GPU")
"""Resources whose numbers in the cluster are told."""


def waiting(groups: Sequence[Sequence[Resources]], free: Resources, whole: Resources) -> str | None:
    """Return what VERL waits for; None where it waits for nothing.

    `groups` holds the bundles of each group that has no room; `free` is what nobody uses of the cluster's `whole`.
    """
    if not groups:
        return None
    asked = Counter(_listed(bundle) for bundles in groups for bundle in bundles)
    wanted = ", ".join(f"{count} × ({bundle})" for bundle, count in sorted(asked.items()))
    has = ", ".join(f"{name} {free.get(name, 0.0):g} of {whole.get(name, 0.0):g}" for name in COUNTED)
    return f"VERL waits for room in the Ray cluster: it asks for {wanted}, those of a group on one node; free are {has}"


def _listed(bundle: Resources) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(bundle.items()))
