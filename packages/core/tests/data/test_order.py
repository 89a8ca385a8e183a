from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.order import drawn


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 5), st.integers(0, 3))
def test_every_row_comes_once_each_time_through(count: int, size: int, batches: int, seed: int) -> None:
    rows = [row for index in range(batches) for row in drawn(count, index, size, seed)]
    assert len(rows) == batches * size
    for start in range(0, len(rows), count):
        through = rows[start : start + count]
        assert set(Counter(through).values()) <= {1}
        assert set(through) <= set(range(count))


def test_the_order_follows_from_the_seed_and_changes_each_time_through() -> None:
    assert drawn(50, 0, 50, 1) == drawn(50, 0, 50, 1)
    assert drawn(50, 0, 50, 1) != drawn(50, 0, 50, 2)
    assert drawn(50, 0, 50, 1) != drawn(50, 1, 50, 1)
