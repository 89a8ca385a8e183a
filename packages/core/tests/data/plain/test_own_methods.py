"""Calls of objects' own methods end in time, whatever the methods do."""

import threading
from typing import Any

import pytest

from leyden.core.data.plain.own_methods import MethodHangs, MethodRaised, OwnMethods, TimeBudget, short_name, type_name
from leyden.core.testing.any_values.hostile import OfHostileClass


class _Kind:
    pass


def test_what_a_method_returns_or_raises_is_the_answer() -> None:
    methods = OwnMethods()
    assert methods.call(_Kind, lambda: 7, TimeBudget()) == 7
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt()):

        def broken(error: BaseException = error) -> Any:
            raise error

        with pytest.raises(MethodRaised, match=type(error).__name__):
            methods.call(_Kind, broken, TimeBudget())
    assert methods.stuck == 0


def test_a_method_that_does_not_return_is_left_and_its_class_not_called_again() -> None:
    methods, release, calls = OwnMethods(), threading.Event(), [0]

    def blocks() -> None:
        calls[0] += 1
        release.wait()

    time = TimeBudget(0.05)
    with pytest.raises(MethodHangs):
        methods.call(_Kind, blocks, time)
    assert (time.left, methods.stuck) == (0.0, 1)
    with pytest.raises(MethodHangs):
        methods.call(_Kind, blocks, TimeBudget())
    assert calls == [1]
    assert methods.call(int, lambda: 7, TimeBudget()) == 7
    release.set()
    while methods.stuck:
        threading.Event().wait(0.001)


def test_so_many_threads_are_left_and_no_more() -> None:
    methods, release = OwnMethods(most_stuck=2), threading.Event()
    kinds: list[type[Any]] = [type(f"Kind{n}", (), {}) for n in range(3)]
    for kind in kinds[:2]:
        with pytest.raises(MethodHangs):
            methods.call(kind, release.wait, TimeBudget(0.02))
    with pytest.raises(MethodHangs):
        methods.call(kinds[2], lambda: True, TimeBudget())
    release.set()
    while methods.stuck:
        threading.Event().wait(0.001)
    assert methods.call(kinds[2], lambda: True, TimeBudget())


def test_without_time_nothing_is_called() -> None:
    with pytest.raises(MethodHangs):
        OwnMethods().call(_Kind, lambda: 7, TimeBudget(0.0))


def test_a_class_has_a_name_whatever_its_metaclass_does() -> None:
    assert short_name(OfHostileClass()) == "OfHostileClass"
    assert type_name(OfHostileClass()) == "leyden.core.testing.any_values.hostile.OfHostileClass"
    assert type_name("text") == "str"
