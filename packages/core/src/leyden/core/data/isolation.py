"""How concurrent rollouts of an agent are kept apart."""

from typing import Literal, TypeAlias, get_args

from leyden.core.errors import UsageError

Isolation: TypeAlias = Literal["auto", "process", "shared"]
"""`auto`: rollouts share a process if nothing in it can pass from one to another; otherwise each has one of its own."""
CHOICES: tuple[Isolation, ...] = get_args(Isolation)


def check_isolation(given: str) -> Isolation:
    """Return `given`; raises UsageError, in one line, for what is none of the choices."""
    for choice in CHOICES:
        if given == choice:
            return choice
    raise UsageError(f"isolation is one of {', '.join(CHOICES)}, not {given!r}")
