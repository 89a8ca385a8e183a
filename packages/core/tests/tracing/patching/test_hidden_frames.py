import traceback
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings


def library() -> str:
    warnings.warn("look at your call", UserWarning, stacklevel=2)
    return "done"


async def library_async() -> str:
    return library_warns_for_its_callers_caller()


def library_warns_for_its_callers_caller() -> str:
    warnings.warn("look at your call", UserWarning, stacklevel=3)
    return "done"


async def library_stream() -> AsyncIterator[str]:
    warnings.warn("look at your call", UserWarning, stacklevel=2)
    yield "done"


@hidden_from_warnings
def ours() -> str:
    """Ours."""
    return library()


@hidden_from_warnings
async def ours_async() -> str:
    return await library_async()


@hidden_from_warnings
async def ours_stream() -> AsyncIterator[str]:
    async for piece in library_stream():
        yield piece


async def test_a_warning_for_the_caller_names_the_agents_line_once() -> None:
    async def agent() -> list[str]:
        return [ours(), await ours_async(), *[piece async for piece in ours_stream()]]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            assert await agent() == ["done"] * 3
    line = agent.__code__.co_firstlineno + 1
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)]


def test_a_function_stays_what_it_was_and_is_seen_in_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("x")

    assert (ours.__name__, ours.__doc__, ours.__module__) == ("ours", "Ours.", __name__)
    monkeypatch.setitem(globals(), "library", fail)
    with pytest.raises(KeyError) as failure:
        ours()
    frames: Any = traceback.extract_tb(failure.value.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["ours", "fail"]
    assert __file__ in frames[-2].filename
