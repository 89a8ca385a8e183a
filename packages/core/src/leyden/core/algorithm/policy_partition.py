"""Policy partition: gives each call to the policy that learns from it, which is the policy that made it.

Invariant: exactly one policy learns from each call, and the calls keep their order.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from leyden.core.data.transition import Transition
from leyden.core.errors import TrainingError

T = TypeVar("T")


def owner(call: Transition, policies: Collection[str]) -> str:
    """Return which of `policies` learns from `call`: the one that made it, or the only policy there is.

    Raises TrainingError if there are several policies and none of them made the call.
    """
    if len(policies) == 1:
        return next(iter(policies))
    if call.policy not in policies:
        raise TrainingError(
            f"a call of rollout {call.rollout_id} was answered by policy {call.policy!r}, which is not trained"
        )
    return call.policy


def split_by_policy(
    items: Iterable[T], policies: Collection[str], call_of: Callable[[T], Transition]
) -> dict[str, list[T]]:
    """Return the `items` of each policy, by the call of each item; policies without an item are left out."""
    items_by_policy: dict[str, list[T]] = {name: [] for name in policies}
    for item in items:
        items_by_policy[owner(call_of(item), policies)].append(item)
    return {name: own for name, own in items_by_policy.items() if own}


def critic_by_policy(
    critics: Mapping[str, Callable[[Sequence[Transition]], NDArray[np.float64]]],
) -> Callable[[Sequence[Transition]], NDArray[np.float64]]:
    """Return a critic that uses, for each call, the critic of the policy that made the call."""

    def values(calls: Sequence[Transition]) -> NDArray[np.float64]:
        values_N = np.empty(len(calls))
        for name, indices in split_by_policy(range(len(calls)), critics, lambda index: calls[index]).items():
            values_N[indices] = critics[name]([calls[index] for index in indices])
        return values_N

    return values
