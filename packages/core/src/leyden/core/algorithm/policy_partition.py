"""Which policy learns from which call: each from its own. Knows nothing of what is learned, or how.

Invariant: every call is learned from by one policy, and in the order in which it was given.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from leyden.core.data.transition import Transition
from leyden.core.errors import TrainingError

T = TypeVar("T")


def owner(call: Transition, policies: Collection[str]) -> str:
    """Return which of `policies` learns from `call`: the only one, whoever wrote the call, or the one that made it.

    Raises TrainingError for a call that none of several made.
    """
    if len(policies) == 1:
        return next(iter(policies))
    if call.policy not in policies:
        raise TrainingError(f"a call of rollout {call.rollout_id} was made by {call.policy!r}, which is not trained")
    return call.policy


def shared_out(items: Iterable[T], policies: Collection[str], call_of: Callable[[T], Transition]) -> dict[str, list[T]]:
    """Deal `items` to `policies`, each to the one that learns from its call; one that gets nothing is left out."""
    dealt: dict[str, list[T]] = {name: [] for name in policies}
    for item in items:
        dealt[owner(call_of(item), policies)].append(item)
    return {name: own for name, own in dealt.items() if own}


def each_its_own(
    critics: Mapping[str, Callable[[Sequence[Transition]], NDArray[np.float64]]],
) -> Callable[[Sequence[Transition]], NDArray[np.float64]]:
    """Return the critic that asks, about each call, the one of the policy that made it."""

    def values(calls: Sequence[Transition]) -> NDArray[np.float64]:
        values_N = np.empty(len(calls))
        for name, places in shared_out(range(len(calls)), critics, lambda place: calls[place]).items():
            values_N[places] = critics[name]([calls[place] for place in places])
        return values_N

    return values
