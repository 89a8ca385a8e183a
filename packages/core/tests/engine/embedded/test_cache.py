import torch

from leyden.core.engine.embedded.cache import BLOCK, COLUMNS, CacheShape, PrefixCache, SlotCache

SHAPE = CacheShape(layers=2, heads=3, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def filled(cache: SlotCache, slot: int, length: int, seed: int) -> torch.Tensor:
    """Write random keys and values of `length` tokens into `slot`, and return them."""
    generator = torch.Generator().manual_seed(seed)
    step = cache.step(slot, [list(range(length))])
    written = torch.randn(SHAPE.layers, 2, 1, SHAPE.heads, length, SHAPE.head_dim, generator=generator)
    for layer in range(SHAPE.layers):
        step.write(layer, written[layer, 0], written[layer, 1])
    return written[:, :, 0]


def test_a_token_lands_in_the_column_of_its_position() -> None:
    cache = SlotCache(SHAPE)
    first, second = filled(cache, 0, 5, 0), filled(cache, 1, 9, 1)
    step = cache.step(0, [[5], [9]])
    new = torch.ones(2, SHAPE.heads, 1, SHAPE.head_dim)
    keys, values = step.write(1, new, 2 * new)
    assert keys.shape == (2, SHAPE.heads, 10, SHAPE.head_dim)
    assert torch.equal(keys[0, :, :5], first[1, 0])
    assert torch.equal(keys[1, :, :9], second[1, 0])
    assert torch.equal(keys[0, :, 5], new[0, :, 0])
    assert torch.equal(values[1, :, 9], 2 * new[0, :, 0])


def test_growing_keeps_what_is_there() -> None:
    cache = SlotCache(SHAPE)
    written = filled(cache, 0, 7, 0)
    cache.reserve(70, COLUMNS + 1)
    assert cache.data.shape[2] >= 70
    assert cache.data.shape[4] == 2 * COLUMNS
    assert torch.equal(cache.data[:, :, 0, :, :7], written)


def test_a_mask_shows_the_last_tokens_up_to_itself() -> None:
    step = SlotCache(SHAPE).step(0, [[2, 3], [0, 1]])
    seen = [[[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 0, 0, 0], [1, 1, 0, 0]]]
    assert torch.equal(step.mask()[:, 0] == 0, torch.tensor(seen, dtype=torch.bool))
    assert torch.equal(step.mask(2)[0, 0] == 0, torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]], dtype=torch.bool))


def test_a_prefix_comes_back_as_it_was_stored() -> None:
    cache, prefixes = SlotCache(SHAPE), PrefixCache(SHAPE, 1024)
    ids = list(range(50))
    written = filled(cache, 0, 50, 0)
    prefixes.store(ids, cache, 0)
    assert len(prefixes) == 48
    block_indices = prefixes.match([*ids[:40], 99, 99, 99, 99, 99, 99, 99, 99])
    assert len(block_indices) == 2
    prefixes.load(block_indices, cache, 5)
    assert torch.equal(cache.data[:, :, 5, :, :32], written[:, :, :, :32])
    assert prefixes.match(ids[1:]) == []
    assert prefixes.match(ids[:15]) == []


def test_the_same_tokens_after_another_beginning_are_another_block() -> None:
    cache, prefixes = SlotCache(SHAPE), PrefixCache(SHAPE, 1024)
    one, other = [1] * BLOCK + [7] * BLOCK, [2] * BLOCK + [7] * BLOCK
    for slot, ids in enumerate((one, other)):
        filled(cache, slot, len(ids), slot)
        prefixes.store(ids, cache, slot)
    assert set(prefixes.match(one)).isdisjoint(prefixes.match(other))
    assert prefixes.match([7] * BLOCK) == []


def test_what_was_used_least_recently_goes_first_and_children_before_parents() -> None:
    cache, prefixes = SlotCache(SHAPE), PrefixCache(SHAPE, 4 * BLOCK)
    long, short, new = [1] * 3 * BLOCK, [2] * BLOCK, [3] * 2 * BLOCK
    for ids in (long, short):
        filled(cache, 0, len(ids), 0)
        prefixes.store(ids, cache, 0)
    prefixes.store(new, cache, 0)
    assert [len(prefixes.match(ids)) for ids in (long, short, new)] == [1, 1, 2]


def test_a_prefix_longer_than_the_cache_is_kept_in_part() -> None:
    cache, prefixes = SlotCache(SHAPE), PrefixCache(SHAPE, 2 * BLOCK)
    filled(cache, 0, 5 * BLOCK, 0)
    prefixes.store([1] * 5 * BLOCK, cache, 0)
    assert len(prefixes.match([1] * 5 * BLOCK)) == 2


def test_flushed_prefixes_are_unknown_and_their_room_is_used_again() -> None:
    cache, prefixes = SlotCache(SHAPE), PrefixCache(SHAPE, 2 * BLOCK)
    for round_ in range(3):
        ids = [round_] * 2 * BLOCK
        assert prefixes.first_unknown(ids) is not None
        written = filled(cache, 0, len(ids), round_)
        prefixes.store(ids, cache, 0)
        block_indices = prefixes.match(ids)
        prefixes.load(block_indices, cache, 1)
        assert torch.equal(cache.data[:, :, 1, :, : len(ids)], written)
        assert prefixes.first_unknown(ids) is None
        prefixes.flush()
        assert (len(prefixes), prefixes.match(ids)) == (0, [])


def test_without_room_nothing_is_kept() -> None:
    cache, prefixes = SlotCache(SHAPE), PrefixCache(SHAPE, 0)
    filled(cache, 0, BLOCK, 0)
    prefixes.store([1] * BLOCK, cache, 0)
    assert prefixes.match([1] * BLOCK) == []
    assert prefixes.first_unknown([1] * BLOCK) is None
