"""Rendezvous hashing: even shares, and a change of the list moves only the share of the changed shard."""

from collections import Counter
from dataclasses import dataclass

from leyden.core.store.sharded.numbers import Numbers, for_each_try
from leyden.core.store.sharded.placement import ranked


@dataclass(frozen=True)
class One:
    name: str


SHARDS = [One(name) for name in "abcd"]
KEYS = [f"ro-{number}" for number in range(4000)]


def test_each_shard_gets_an_even_share() -> None:
    shares = Counter(ranked(SHARDS, key)[0].name for key in KEYS)
    assert set(shares) == set("abcd")
    assert all(900 < share < 1100 for share in shares.values())


def test_a_new_shard_takes_only_its_own_share() -> None:
    for key in KEYS:
        before, after = ranked(SHARDS[:3], key), ranked(SHARDS, key)
        assert [shard for shard in after if shard != SHARDS[3]] == before


def test_the_order_of_the_list_does_not_count() -> None:
    assert all(ranked(SHARDS, key) == ranked(SHARDS[::-1], key) for key in KEYS[:100])


def test_numbers_ascend_and_a_block_can_be_moved() -> None:
    numbers = Numbers()
    first = next(numbers)
    block = numbers.block(3)
    assert first < block[0] < block[1] < block[2] < next(numbers)
    moved = for_each_try(block)
    tries = [moved() for _ in range(4)]
    assert tries[0] == list(block) and len({number for one in tries for number in one}) == 12
    assert all(one == sorted(one) and one[-1] < next(numbers) for one in tries)
