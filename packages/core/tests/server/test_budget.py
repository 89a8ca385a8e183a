"""Sizes and budgets."""

import pytest

from leyden.core.errors import UsageError
from leyden.core.server.budget import Budget, cores_of, free_slots, read_size, shown, usable_cores


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("8gb", 8 << 30),
        ("1.5 GiB", 3 << 29),
        ("512M", 512 << 20),
        ("1073741824", 1 << 30),
        ("2TiB", 2 << 40),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert read_size(text) == size
    assert read_size(shown(size)) == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "nan", "1e9", "8PiB", "GiB", "9" * 20, "1,5GiB"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory takes a size such as 8GiB"):
        read_size(text)


def test_slots_of_a_core_are_shared_only_where_there_are_more_than_cores() -> None:
    total = Budget(memory=1 << 30, cores=3)
    assert free_slots(total, [(0,), (2,)]) == [1]
    usable = usable_cores()
    assert cores_of(range(len(usable))) == set(usable)
    assert cores_of([len(usable)]) == {usable[0]}
