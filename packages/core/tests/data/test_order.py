from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.order import rows_of_batch


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 5), st.integers(0, 3))
def test_every_row_comes_once_each_time_through(count: int, size: int, batches: int, seed: int) -> None:
    rows = [row for index in range(batches) for row in rows_of_batch(count, index, size, seed)]
    assert len(rows) == batches * size
    for start in range(0, len(rows), count):
        epoch = rows[start : start + count]
        assert set(Counter(epoch).values()) <= {1}
        assert set(epoch) <= set(range(count))


def test_the_order_follows_from_the_seed_and_changes_each_time_through() -> None:
    assert rows_of_batch(50, 0, 50, 1) == rows_of_batch(50, 0, 50, 1)
    assert rows_of_batch(50, 0, 50, 1) != rows_of_batch(50, 0, 50, 2)
    assert rows_of_batch(50, 0, 50, 1) != rows_of_batch(50, 1, 50, 1)
