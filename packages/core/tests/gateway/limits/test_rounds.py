import asyncio

from leyden.core.gateway.limits.rounds import Rounds


async def begin(rounds: Rounds, order: list[str], attempt_id: str, number: int) -> None:
    if (begins := rounds.enter(attempt_id)) is not None:
        await begins
    order.append(f"{attempt_id}{number}")


async def test_an_attempt_begins_two_calls_a_round() -> None:
    rounds, order = Rounds(), list[str]()
    calls = [begin(rounds, order, "a", number) for number in range(6)]
    calls += [begin(rounds, order, other, number) for number in range(2) for other in "bc"]
    await asyncio.gather(*calls)
    assert order == ["a0", "a1", "b0", "c0", "b1", "c1", "a2", "a3", "a4", "a5"]


async def test_who_comes_later_begins_in_the_round_that_is_on() -> None:
    rounds, order = Rounds(), list[str]()
    many = [asyncio.create_task(begin(rounds, order, "a", number)) for number in range(50)]
    while len(order) < 10:
        await asyncio.sleep(0)
    began = len(order)
    await begin(rounds, order, "b", 0)
    assert len(order) <= began + 3
    await asyncio.gather(*many)
    assert [name for name in order if name != "b0"] == [f"a{number}" for number in range(50)]


async def test_a_call_that_gives_up_takes_no_round() -> None:
    rounds, order = Rounds(), list[str]()
    calls = [asyncio.create_task(begin(rounds, order, "a", number)) for number in range(5)]
    await asyncio.sleep(0)
    for number in (2, 4):
        calls[number].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert order == ["a0", "a1", "a3"]
    await begin(rounds, order, "a", 5)
    assert order == ["a0", "a1", "a3", "a5"]


async def test_rounds_end_when_nothing_is_left_to_begin() -> None:
    rounds, order = Rounds(), list[str]()
    await asyncio.gather(*(begin(rounds, order, "a", number) for number in range(3)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not rounds._is_running  # pyright: ignore[reportPrivateUsage]
