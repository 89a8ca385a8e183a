import inspect
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from multiprocessing.pool import ThreadPool
from threading import Thread
from typing import Any

import openai

from leyden.core.tracing import context_propagation
from leyden.core.tracing.patching.in_place import in_place_of
from leyden.core.tracing.wire import routing


def found(library: str) -> Iterator[tuple[str, Any]]:
    """What is replaced of a library, as far as it is installed."""
    with suppress(ImportError):
        module: Any = import_module(library)
        ours: Any = import_module(routing.LIBRARIES[library])
        for path, name in ours.WRAPPED[library]:
            owner = module
            for part in path.split(".") if path else ():
                owner = getattr(owner, part)
            yield f"{library}.{path}.{name}", getattr(owner, name)


def all_found() -> dict[str, Any]:
    return {name: function for library in routing.LIBRARIES for name, function in found(library)}


def taken(function: Any) -> inspect.FullArgSpec | None:
    """What it takes; None for a builtin of which Python does not know it."""
    try:
        return inspect.getfullargspec(function)
    except TypeError:
        return None


def test_what_is_routed_says_that_it_takes_what_it_took_before() -> None:
    before = all_found()
    assert {"openai.AsyncOpenAI.__init__", "http.client.HTTPConnection.getresponse"} <= before.keys()
    routing.install()
    try:
        during = all_found()
    finally:
        routing.uninstall()
    for name, original in before.items():
        assert during[name] is not original
        if (arguments := taken(original)) is not None:
            assert taken(during[name]) == arguments, name
            assert inspect.signature(during[name]) == inspect.signature(original), name


def test_autogen_finds_the_arguments_of_a_client() -> None:
    routing.install()
    try:
        names = inspect.getfullargspec(openai.AsyncOpenAI.__init__).kwonlyargs
    finally:
        routing.uninstall()
    assert {"api_key", "base_url", "timeout", "max_retries", "http_client"} <= set(names)


def test_what_carries_says_that_it_takes_what_it_took_before() -> None:
    methods = (ThreadPool, "map"), (ThreadPool, "apply_async"), (Thread, "start")
    before = [inspect.getfullargspec(getattr(owner, name)) for owner, name in methods]
    context_propagation.install()
    try:
        assert [inspect.getfullargspec(getattr(owner, name)) for owner, name in methods] == before
    finally:
        context_propagation.uninstall()


def test_a_builtin_without_a_signature_is_replaced_all_the_same() -> None:
    def ours(*args: Any) -> Any:
        return args

    placed = in_place_of(max, ours)
    assert (placed(1, 2), placed.__name__) == ((1, 2), "max")
