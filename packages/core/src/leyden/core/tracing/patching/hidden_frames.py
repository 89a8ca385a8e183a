"""`hidden_from_warnings`: for functions of ours that stand between an agent and what it calls.

A library that warns with `stacklevel=2` means its caller: where one of our frames is in between, the warning would name
our file, be shown once for our line instead of once for each of the agent's, and miss filters by module.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

HIDDEN = "<importlib._bootstrap: "
"""What the names of such frames' files begin with."""
P = ParamSpec("P")
R = TypeVar("R")


def hidden_from_warnings(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with frames that `warnings` passes over when it looks for a caller.

    It does so for frames of the import system alone, which it knows by `importlib` and `_bootstrap` in the name of
    their file; there is no other way. A traceback shows the name, without the line's text.
    """
    code = function.__code__
    name = f"{HIDDEN}{code.co_filename}>"
    function.__code__ = code.replace(co_filename=name)
    return function
