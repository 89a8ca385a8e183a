"""The text-to-SQL example's comparison of two results."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_files import load, on_the_path
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/text_to_sql"
Row = tuple[object, ...]


@pytest.fixture(scope="module")
def match() -> Iterator[Any]:
    with on_the_path(EXAMPLE):
        yield load(EXAMPLE, "execution_match")


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Two small tables, of which the second is often the first with its rows and columns in another order."""
    width = draw(st.integers(1, 5))
    row = st.tuples(*[st.sampled_from((0, 1, None, "a"))] * width)
    first = draw(st.lists(row, min_size=1, max_size=5))
    columns = draw(st.permutations(range(width)))
    second = [tuple(row[column] for column in columns) for row in draw(st.permutations(first))]
    if draw(st.booleans()):
        second[0] = draw(row)
    return first, second


@given(two_tables(), st.booleans())
def test_two_results_are_the_same_if_trying_all_orders_says_so(
    match: Any, tables: tuple[list[Row], list[Row]], ordered: bool
) -> None:
    found, expected = tables
    orders = itertools.permutations(range(len(found[0])))
    tried = ([tuple(row[column] for column in order) for row in found] for order in orders)
    same = any(rows == expected if ordered else Counter(rows) == Counter(expected) for rows in tried)
    assert match.same_rows(found, expected, ordered=ordered) == same


def shuffled(table: list[Row], seed: int) -> list[Row]:
    rng = random.Random(seed)
    columns = rng.sample(range(len(table[0])), len(table[0]))
    return [tuple(row[column] for column in columns) for row in rng.sample(table, len(table))]


def circles(*lengths: int) -> list[Row]:
    """A column for each corner of these circles, and a row for each edge, with 1 for its two corners."""
    edges = [
        (first + corner, first + (corner + 1) % length)
        for length, first in zip(lengths, itertools.accumulate(lengths, initial=0), strict=False)
        for corner in range(length)
    ]
    return [tuple(int(corner in edge) for corner in range(sum(lengths))) for edge in edges]


EQUAL: list[Row] = [(number,) * 8 for number in range(1000)]
PAIRS: list[Row] = [(number, number, *(number % 7,) * 4, *(number % 5,) * 2) for number in range(1000)]


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ([(None,) * 10 + (1,)], [(None,) * 10 + (2,)], False),
        ([(None,) * 10 + (1,)], [(1,) + (None,) * 10], True),
        (EQUAL, EQUAL[::-1], True),
        (EQUAL, [(*row[:7], -1) for row in EQUAL], False),
        (PAIRS, shuffled(PAIRS, 1), True),
        (PAIRS, shuffled([*PAIRS[:-2], (*PAIRS[-2][:7], 1), (*PAIRS[-1][:7], 2)], 1), False),
        (circles(12), circles(6, 6), False),
        (circles(6, 6), shuffled(circles(6, 6), 1), True),
    ],
)
def test_columns_that_are_alike_do_not_take_factorial_time(
    match: Any, found: list[Row], expected: list[Row], same: bool
) -> None:
    started = time.process_time()
    assert match.same_rows(found, expected, ordered=False) == same
    assert time.process_time() - started < 10


def test_a_search_that_takes_too_long_has_no_match(match: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert match.same_rows(circles(30), shuffled(circles(30), 1), ordered=False)
    monkeypatch.setattr(match, "MAX_CELLS", 100)
    assert not match.same_rows(circles(30), shuffled(circles(30), 1), ordered=False)


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t order\nby a", True),
        ("SELECT a FROM t ORDER  \t BY a", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)", True),
        ("SELECT a FROM t", False),
        ("SELECT a FROM t WHERE b = 'order by'", False),
        ("SELECT a FROM t WHERE b = 'it''s order by' AND \"order by\" = [order by]", False),
        ("SELECT a FROM border bypass", False),
    ],
)
def test_the_order_of_rows_counts_if_the_gold_query_has_an_order_by(match: Any, query: str, ordered: bool) -> None:
    assert match.is_ordered(query) == ordered
