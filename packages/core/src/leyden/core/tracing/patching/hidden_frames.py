"""`hidden_from_warnings`: for functions of Leyden's that are called between an agent and a library.

A library that warns with `stacklevel=2` refers to its caller. With a frame of Leyden's in between, the warning would
name Leyden's file and be missed by filters by module. It would also be shown once for Leyden's line, instead of once
for each line of the agent's.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

HIDDEN = "<importlib._bootstrap: "
"""Prefix of the file names of such frames."""
P = ParamSpec("P")
R = TypeVar("R")


def hidden_from_warnings(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, changed so that `warnings` skips its frames when it looks for a caller.

    `warnings` skips only frames of the import system, which it recognises by `importlib` and `_bootstrap` in the file
    name. There is no other way. A traceback shows the file name without the source line.
    """
    code = function.__code__
    name = f"{HIDDEN}{code.co_filename}>"
    function.__code__ = code.replace(co_filename=name)
    return function
