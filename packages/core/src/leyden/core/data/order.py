"""Order of the rows of a dataset in a run: a new shuffle for every epoch, drawn from a seed."""

import random


def drawn(count: int, index: int, size: int, seed: int) -> list[int]:
    """Return the row numbers of batch number `index`, which has `size` rows; every epoch has each of `count` rows once.

    A pure function of its arguments, so that a resumed run continues exactly where it stopped.
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
