"""Conversion of settings: each error names the place, what is there, and what may be there."""

from typing import Any, Literal

import msgspec
import pytest

from leyden.core.data.encoding.settings import SettingError, converted, inner_settings


class Inner(msgspec.Struct):
    how: Literal["best", "all"] = "best"
    size: int | None = None


class Outer(msgspec.Struct):
    name: str = ""
    inner: Inner = msgspec.field(default_factory=Inner)
    each: dict[str, Inner] = {}
    several: tuple[Inner, ...] = ()
    weights: dict[str, float] = {}
    where: Literal["here"] | None = None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"name": 5}, "name: must be text, not a whole number"),
        ({"inner": {"how": "bst"}}, "inner.how: invalid enum value 'bst'; it must be best or all"),
        ({"where": "there"}, "where: invalid enum value 'there'; it must be here"),
        ({"several": [{}, {"size": "big"}]}, r"several\[1\].size: must be a whole number, not text"),
        ({"weights": {"a": 1, "b": "c"}}, "weights.b: must be a number, not text"),
        ({"each": {"a": {}, "b": {"size": 0.5}}}, "each.b.size: must be a whole number, not a number"),
        ({"weights": {1: 0.5}}, "weights: a key must be text, not a whole number; put it in quotes"),
        ({"inner": {"hw": "all"}, "several": 3}, "several: must be a list, not a whole number"),
    ],
)
def test_an_error_names_the_place(value: dict[Any, Any], says: str) -> None:
    with pytest.raises(SettingError, match=f"^{says}$"):
        converted(value, Outer)


def test_values_of_the_right_types_are_converted() -> None:
    assert converted({"inner": {"how": "all"}, "weights": {"a": 1}}, Outer) == Outer(
        inner=Inner(how="all"), weights={"a": 1.0}
    )
    with pytest.raises(SettingError, match=r"^must be a whole number, not text$"):
        converted("x", int)


def test_settings_within_lists_and_mappings_are_found() -> None:
    kinds = {"inner": Inner, "each": dict[str, Inner], "several": tuple[Inner, ...], "maybe": Inner | None}
    value = {"inner": {"a": 1}, "each": {"x": {"b": 2}}, "several": [{}, {"c": 3}, "text"], "maybe": {"d": 4}}
    found = [(place, part) for name in kinds for place, part, _ in inner_settings(name, value[name], kinds[name])]
    assert found == [
        ("inner", {"a": 1}),
        ("each.x", {"b": 2}),
        ("several[0]", {}),
        ("several[1]", {"c": 3}),
        ("maybe", {"d": 4}),
    ]
