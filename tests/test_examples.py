"""How many examples of a property the fast and the long tests draw."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import examples
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn(test: Any) -> int:
    """The number of examples that a property is tried with."""
    seen: list[int] = []
    test(seen)
    return len(seen)


def test_few_are_drawn_of_a_property_unless_it_always_draws_the_same() -> None:
    def counts(seen: list[int], number: int) -> None:
        seen.append(number)

    for wanted, same, expected in ((100, False, examples.FEW), (100, True, 100), (9, False, 9)):
        asks = settings(max_examples=wanted, derandomize=same, database=None)
        test: Any = asks(given(number=st.integers())(counts))
        assert drawn(test) == wanted
        examples.draw_few(test)
        assert drawn(test) == expected


@pytest.mark.parametrize(
    ("wanted", "is_long", "expected"),
    [
        ("long", True, 60),
        ("long and not campaign", True, 60),
        ("not long", False, examples.FEW),
        ("unit", False, examples.FEW),
        ("", False, 60),
    ],
)
def test_a_property_is_a_long_test_too_and_has_all_examples_there(
    request: pytest.FixtureRequest, wanted: str, is_long: bool, expected: int
) -> None:
    @settings(max_examples=60, database=None)
    @given(number=st.integers())
    def test(seen: list[int], number: int) -> None:
        seen.append(number)

    def plain() -> None: ...

    make = cast("Callable[..., pytest.Item]", pytest.Function.from_parent)  # pyright: ignore[reportUnknownMemberType]
    items = [make(request.node.parent, name="test", callobj=each) for each in (test, plain)]
    config = cast(pytest.Config, SimpleNamespace(option=SimpleNamespace(markexpr=wanted)))
    examples.pytest_collection_modifyitems(config, items)
    assert [item.get_closest_marker("long") is not None for item in items] == [is_long, False]
    assert drawn(test) == expected
