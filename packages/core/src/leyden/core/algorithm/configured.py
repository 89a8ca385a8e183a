"""A learner that is a part of a larger algorithm, made from its name and its configuration. Knows none of either."""

from collections.abc import Mapping
from typing import Any, cast

from leyden.core.algorithm.learner import Learner
from leyden.core.errors import UsageError


def make_learner(
    algorithm: str, config: Mapping[str, Any], *, learning_rate: float | None, place: str
) -> Learner[Any, Any]:
    """The learner called `algorithm`, or named by an import string; `learning_rate` is for one that names none.

    Raises UsageError, which begins with the `place` that it is to have in the whole, for one that cannot have it.
    """
    from leyden.core.algorithm.registry import make_algorithm  # it knows those who ask here, too

    given = {} if learning_rate is None else {"learning_rate": learning_rate}
    try:
        learner = make_algorithm(algorithm, {**given, **config})
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error
    if not isinstance(learner, Learner):
        kind = place.partition(" ")[0]
        raise UsageError(f"{place}: {algorithm} keeps a loop of its own, and cannot be a {kind}")
    return cast("Learner[Any, Any]", learner)
