"""Types of `Trainer`'s arguments: a wrong one is refused in one line, and not where it is first used."""

from collections.abc import Mapping
from numbers import Integral

from leyden.core.algorithm.base import Algorithm
from leyden.core.errors import UsageError


def check_types(algorithm: object, initial_resources: object, numbers: Mapping[str, object]) -> None:
    """Raise UsageError for an argument of another type; `numbers` are whole numbers or None, by their names."""
    if isinstance(algorithm, type):
        name = algorithm.__name__
        raise UsageError(f"algorithm= was given the class {name}: give an object, such as {name}()")
    if algorithm is not None and not isinstance(algorithm, Algorithm):
        raise UsageError(f"algorithm= takes an algorithm, such as LightningRL(), not {algorithm!r}")
    if initial_resources is not None and not isinstance(initial_resources, Mapping):
        raise UsageError(
            f"initial_resources= takes resources by name, such as {{'prompt': PromptTemplate(...)}}, "
            f"not {initial_resources!r}"
        )
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UsageError(f"{name}= takes a whole number, not {value!r}")
