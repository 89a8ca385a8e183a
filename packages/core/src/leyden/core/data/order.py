"""Order of the rows of a dataset in a run: a new shuffle for every epoch, drawn from a seed."""

import random


def rows_of_batch(count: int, index: int, size: int, seed: int) -> list[int]:
    """Return the row numbers of batch number `index`, which has `size` rows; every epoch has each of `count` rows once.

    A pure function of its arguments, so that a resumed run continues exactly where it stopped.
    """
    orders: dict[int, list[int]] = {}
    rows: list[int] = []
    for position in range(index * size, (index + 1) * size):
        epoch, offset = divmod(position, count)
        if epoch not in orders:
            orders[epoch] = _order(count, seed, epoch)
        rows.append(orders[epoch][offset])
    return rows


def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
