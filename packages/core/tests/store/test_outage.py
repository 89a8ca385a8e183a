"""Which errors of a store are outages, and how long a call is repeated through one."""

import pytest

from leyden.core.errors import CallRefused, IllegalMove, NotFound, StoreClosed, StoreError, UsageError
from leyden.core.store import outage
from leyden.core.store.memory import MemoryStore
from leyden.core.store.outage import is_outage, through_outage


class Failing:
    """A call that raises these errors, one each time, and then returns how often it was made."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


async def test_a_call_is_repeated_until_the_store_works_again(caplog: pytest.LogCaptureFixture) -> None:
    assert await through_outage(Failing(StoreError("gone"), StoreError("starting up"))) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "the store failed; the call is repeated for 60 s: gone"
    ]


@pytest.mark.parametrize(
    "error",
    [NotFound("none"), IllegalMove("no"), CallRefused("no"), StoreClosed(), UsageError("wrong URI"), TypeError("odd")],
)
async def test_what_a_working_store_refuses_is_raised_at_once(error: Exception) -> None:
    call = Failing(error)
    with pytest.raises(type(error)):
        await through_outage(call)
    assert call.calls == 1
    assert not is_outage(error)


async def test_a_closed_store_has_no_outage() -> None:
    store = MemoryStore()
    await store.close()
    with pytest.raises(StoreClosed, match="this store is closed"):
        await through_outage(store.query_rollouts)


async def test_an_outage_without_end_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "LONGEST_SECONDS", 0.25)
    call = Failing(*(StoreError(f"gone {n}") for n in range(9)))
    with pytest.raises(StoreError, match="gone 1"):
        await through_outage(call)
    assert call.calls == 2  # at the start, and after 0.1 s; the next one would be after 0.3 s
