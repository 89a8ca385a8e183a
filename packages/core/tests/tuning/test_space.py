"""Search spaces: what a text means, and one line for what none can be."""

import math

import pytest

from leyden.core.errors import UsageError
from leyden.core.tuning.space import Choices, Range, combinations, read_space, space_size


def test_ranges_and_choices_are_read_and_written_the_same() -> None:
    texts = ["a=1e-05..0.001:log", "b=0.5..2", "c=4..16:int", "d=1..64:int:log", "e=uniform,discounted"]
    space = read_space(texts)
    assert space["a"] == Range(low=1e-5, high=1e-3, log=True)
    assert space["c"] == Range(low=4, high=16, whole=True)
    assert space["e"] == Choices({"uniform": "uniform", "discounted": "discounted"})
    assert [f"{key}={domain}" for key, domain in space.items()] == texts


def test_choices_are_read_as_json_and_named_by_their_text() -> None:
    space = read_space(["a=1,2.5,true,null,x", 'b=["uniform", {"name": "discounted", "gamma": 0.9}]'])
    mixed, listed = space["a"], space["b"]
    assert isinstance(mixed, Choices) and isinstance(listed, Choices)
    assert mixed.settings == {"1": 1, "2.5": 2.5, "true": True, "null": None, "x": "x"}
    assert listed.setting_of('{"name": "discounted", "gamma": 0.9}') == {"name": "discounted", "gamma": 0.9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "write KEY="),
        ("=1..2", "write KEY="),
        ("a=", "write KEY="),
        ("a=2..1", "below its high end"),
        ("a=1..1", "below its high end"),
        ("a=0..1:log", "must begin above 0"),
        ("a=0.5..2:int", "whole numbers as its ends"),
        ("a=1..2:ints", "not in :ints"),
        ("a=1..x", "'x' is not a finite number"),
        ("a=1..inf", "'inf' is not a finite number"),
        ("a=x", "at least two choices"),
        ("a=x,x", "each choice is given once"),
        ("a=x,,y", "none is empty"),
        ("a=x,", "none is empty"),
    ],
)
def test_what_is_no_domain_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        read_space([text])
    assert "\n" not in str(error.value) and "--search" in str(error.value)


def test_a_key_is_given_once_and_there_is_one() -> None:
    with pytest.raises(UsageError, match="--search a: it is given twice"):
        read_space(["a=1..2", "a=x,y"])
    with pytest.raises(UsageError, match="at least one --search"):
        read_space([])


def test_settings_of_a_run_are_found_in_the_space() -> None:
    whole, rate = Range(low=4, high=16, whole=True), Range(low=0.1, high=1)
    assert (whole.value_of(4), whole.value_of(4.5), whole.value_of(17), whole.value_of(True)) == (4, None, None, None)
    assert (rate.value_of(1), rate.value_of("1"), rate.value_of(None)) == (1.0, None, None)
    choices = Choices({"uniform": "uniform", "1": 1, "true": True})
    assert choices.value_of("uniform") == choices.value_of({"name": "uniform"}) == "uniform"
    assert (choices.value_of(1), choices.value_of(True)) == ("1", "true")
    assert choices.value_of({"name": "uniform", "gamma": 1}) is None


def test_finite_spaces_are_listed_whole() -> None:
    space = read_space(["a=x,y", "b=1..3:int"])
    listed = [tuple(one.items()) for one in combinations(space)]
    assert len(listed) == len(set(listed)) == space_size(space) == 6
    assert math.isinf(space_size(read_space(["a=0..1"])))


def test_a_check_tries_both_ends_and_a_value_between_that_is_not_whole() -> None:
    low, high, between = Range(low=4, high=16).examples()
    assert (low, high) == (4, 16) and isinstance(between, float) and 4 < between < 16 and between % 1
    assert all(isinstance(value, int) for value in Range(low=4, high=16, whole=True).examples())
