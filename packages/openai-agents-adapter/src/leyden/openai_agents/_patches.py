"""Methods of a framework's classes that run ours instead, for as long as they are patched. Knows no framework."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

Method: TypeAlias = Callable[..., Any]


class Patches:
    """Puts methods in place of others, once, and puts the others back."""

    def __init__(self) -> None:
        self._on = True
        self._put: list[tuple[type, str, Method, Method]] = []

    def put(self, owner: type, name: str, patch: Callable[[Method], Method]) -> None:
        """Call what `patch` makes of a method that `owner` itself defines in its place."""
        original: Method = vars(owner)[name]
        replacement = patch(original)

        @wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            return (replacement if self._on else original)(*args, **kwargs)

        setattr(owner, name, method)
        self._put.append((owner, name, original, method))

    def undo(self) -> None:
        """Put back what was there; where somebody has patched over ours since, ours stays below and passes on."""
        self._on = False
        for owner, name, original, method in reversed(self._put):
            if vars(owner).get(name) is method:
                setattr(owner, name, original)
