"""Isolation of concurrent rollouts of an agent: in processes of their own, or in a shared process."""

from typing import Literal, TypeAlias, get_args

from leyden.core.errors import UsageError

Isolation: TypeAlias = Literal["auto", "process", "shared"]
"""`shared` rollouts run in one process; with `process`, each has its own.

`auto` shares a process only if no state in it can pass from one rollout to another.
"""
CHOICES: tuple[Isolation, ...] = get_args(Isolation)


def check_isolation(given: str) -> Isolation:
    """Return `given` as an `Isolation`. Raises UsageError, in one line, for any other text."""
    for choice in CHOICES:
        if given == choice:
            return choice
    raise UsageError(f"isolation must be one of {', '.join(CHOICES)}, not {given!r}")
