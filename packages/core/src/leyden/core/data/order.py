"""The order in which a run goes through its rows: shuffled anew each time through, from a seed. Knows no rows."""

import random


def drawn(count: int, index: int, size: int, seed: int) -> list[int]:
    """Return the row numbers of the `index`-th batch of `size`: each of `count` once each time through, none skipped.

    A pure function of its arguments, so that a resumed run goes on exactly where it stopped.
    """
    orders: dict[int, list[int]] = {}
    rows: list[int] = []
    for position in range(index * size, (index + 1) * size):
        through, place = divmod(position, count)
        if through not in orders:
            orders[through] = _order(count, seed, through)
        rows.append(orders[through][place])
    return rows


def _order(count: int, seed: int, through: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}/{through}").shuffle(order)
    return order
