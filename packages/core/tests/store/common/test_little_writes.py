import asyncio
from collections.abc import Sequence

from leyden.core.store.common.little_writes import WriteBatcher


class Doing:
    """Does numbers, and remembers which it was asked for together; none with an odd one among them."""

    def __init__(self) -> None:
        self.together: list[list[int]] = []

    def __call__(self, works: Sequence[int]) -> list[int] | None:
        self.together.append(list(works))
        return None if any(work % 2 for work in works) else [10 * work for work in works]


async def test_what_is_asked_for_in_one_turn_is_done_together() -> None:
    doing = Doing()
    writes = WriteBatcher[int, int](doing)

    done = await asyncio.gather(*(writes.do(work) for work in (2, 4, 6)))
    later = await writes.do(8)

    assert (done, later) == ([(20,), (40,), (60,)], (80,))
    assert doing.together == [[2, 4, 6], [8]]


async def test_where_it_cannot_be_done_together_each_is_told_to_do_it_alone() -> None:
    writes = WriteBatcher[int, int](Doing())

    assert await asyncio.gather(writes.do(2), writes.do(3)) == [None, None]
    assert await writes.do(2) == (20,)


async def test_who_is_cancelled_before_the_turn_ends_is_left_out() -> None:
    doing = Doing()
    writes = WriteBatcher[int, int](doing)
    tasks = [asyncio.ensure_future(writes.do(work)) for work in (2, 4)]
    asyncio.get_running_loop().call_soon(tasks[0].cancel)  # after both have asked, before anything is done

    await asyncio.wait(tasks)

    assert tasks[0].cancelled()
    assert tasks[1].result() == (40,)
    assert doing.together == [[4]]


def test_each_event_loop_has_its_own_turn() -> None:
    doing = Doing()
    writes = WriteBatcher[int, int](doing)

    assert [asyncio.run(writes.do(work)) for work in (2, 4)] == [(20,), (40,)]
    assert doing.together == [[2], [4]]
