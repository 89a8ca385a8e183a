"""`in_place_of`: a function of ours that others take for the one whose place it takes."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any


def in_place_of(original: Callable[..., Any], ours: Callable[..., Any]) -> Any:
    """Return `ours` with the name, the documentation and the signature of `original`.

    The signature is set, as `inspect.getfullargspec` does not look at what `functools.wraps` notes: AutoGen asks it
    which arguments the clients of OpenAI and Anthropic take, and leaves out all others, a key among them.
    """
    placed: Any = wraps(original)(ours)
    with suppress(TypeError, ValueError):  # a builtin without one
        placed.__signature__ = inspect.signature(original)
    return placed
