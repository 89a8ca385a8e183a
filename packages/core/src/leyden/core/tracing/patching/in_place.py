"""`in_place_of`: gives a wrapper the name, documentation and signature of the function that it replaces."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any


def in_place_of(original: Callable[..., Any], replacement: Callable[..., Any]) -> Any:
    """Return `replacement` with the name, the documentation and the signature of `original`.

    The signature is set explicitly, because `inspect.getfullargspec` ignores what `functools.wraps` records. AutoGen
    uses it to find the arguments of OpenAI's and Anthropic's clients, and drops all others, the API key among them.
    """
    wrapper: Any = wraps(original)(replacement)
    with suppress(TypeError, ValueError):  # a builtin without a signature
        wrapper.__signature__ = inspect.signature(original)
    return wrapper
