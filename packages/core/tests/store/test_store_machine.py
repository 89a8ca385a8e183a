"""Any interleaving of operations leaves each store of this process, and its HTTP client, as the state tables say."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.rollout import Attempt, AttemptedRollout, EnqueueRollout, RolloutConfig
from leyden.core.data.worker import Worker
from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_machine import Clock, Opened, StoreMachine, check_store
from leyden.core.testing.store_machine import operations as ops
from leyden.core.testing.store_machine.naming import AttemptNames

RECHECK = 0.02
KINDS = ["memory", "sqlite", "memory through HTTP", "sqlite through HTTP"]


@asynccontextmanager
async def memory(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
    store = MemoryStore(clock)
    yield [store]
    await store.close()


@asynccontextmanager
async def sqlite(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
    stores = [await SqlStore.open(folder / "store.db", clock, RECHECK) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()


def through(server: StoreServer, opened: Opened) -> Opened:
    """Two clients over HTTP, of one server for each store behind."""

    @asynccontextmanager
    async def served(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
        async with opened(folder, clock) as behind:
            urls = [server.add(store) for store in behind]
            clients = [HttpStore(url, TOKEN) for url in (urls[0], urls[-1])]
            yield clients
            for client in clients:
                await client.close()

    return served


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest) -> Generator[Opened]:
    name, _, is_served = request.param.partition(" ")
    behind: Opened = {"memory": memory, "sqlite": sqlite}[name]
    if not is_served:
        yield behind
        return
    with StoreServer() as server:
        yield through(server, behind)


def test_any_interleaving_of_operations(opened: Opened) -> None:
    check_store(opened, examples=6, steps=20)


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_many_interleavings_of_operations(opened: Opened) -> None:
    check_store(opened, examples=15, steps=40)


class LateMemoryStore(MemoryStore):
    """A waiting claim acts later than it read the clock, as a transaction does whose server is busy."""

    def __init__(self, clock: Clock) -> None:
        self._clock_of_test = clock
        self._looked_at: float | None = None
        super().__init__(lambda: clock() if self._looked_at is None else self._looked_at)

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        timeout: float = 0.0,
        request_id: str | None = None,
        queue: str = "",
    ) -> list[AttemptedRollout]:
        looked_at, deadline = self._clock_of_test(), time.monotonic() + timeout
        while True:
            self._looked_at = looked_at
            found = await super().dequeue_many_rollouts(
                limit=limit, worker_id=worker_id, request_id=request_id, queue=queue
            )
            self._looked_at = None
            if found or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(0.001)


@asynccontextmanager
async def late_memory(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
    store = LateMemoryStore(clock)
    yield [store]
    await store.close()


@pytest.mark.parametrize(("moves", "is_explained"), [([2.0], True), ([0.0], True), ([2.0, 1.0], False)])
def test_a_waiting_claim_may_have_read_the_clock_before_its_last_move_and_no_earlier(
    moves: list[float], is_explained: bool
) -> None:
    machine = StoreMachine(late_memory)
    machine.wait_for_work(client=0, limit=1)
    for seconds in moves[:-1]:
        machine.ask(seconds=seconds, client=0, operation=ops.Operation("statistics", {}))
    queued = ops.Operation("enqueue_many_rollouts", {"rollouts": [EnqueueRollout(input=0, rollout_id="r0")]})
    try:
        if is_explained:
            machine.enqueue(seconds=moves[-1], client=0, operation=queued)
        else:
            with pytest.raises(AssertionError, match="no order explains"):
                machine.enqueue(seconds=moves[-1], client=0, operation=queued)
    finally:
        machine.teardown()


@asynccontextmanager
async def late_changes(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
    """A change of the first rollout's attempts is made after what was called beside it."""
    store = MemoryStore(clock)
    update = store.update_attempt

    async def late_update(rollout_id: str, attempt_id: str, **fields: Any) -> Attempt:
        if rollout_id == "r0":
            await asyncio.sleep(0.01)
        return await update(rollout_id, attempt_id, **fields)

    store.update_attempt = late_update  # pyright: ignore[reportAttributeAccessIssue]  # for this one store
    yield [store]
    await store.close()


def test_an_order_that_no_answer_has_told_yet_is_not_decided() -> None:
    """Two rollouts go back to the queue at once; only the next claim shows which came first."""
    machine = StoreMachine(late_changes)
    again = RolloutConfig(max_attempts=2, retry_condition=("failed",))
    requests = [EnqueueRollout(input=n, rollout_id=f"r{n}", config=again) for n in range(2)]
    failing = [
        ops.Operation("update_attempt", {"rollout_id": name, "attempt_id": f"{name}#1", "status": "failed"})
        for name in ("r0", "r1")
    ]
    machine.enqueue(seconds=0.0, client=0, operation=ops.Operation("enqueue_many_rollouts", {"rollouts": requests}))
    machine.claim(seconds=0.0, client=0, operation=ops.Operation("dequeue_many_rollouts", {"limit": 2}))
    try:
        machine.at_once(seconds=0.0, calls=[(0, operation) for operation in failing])
        assert len(machine.models) == 2
        machine.claim(seconds=0.0, client=0, operation=ops.Operation("dequeue_rollout", {}))
        assert len(machine.models) == 1
        assert [rollout.attempts[-1].sequence_id for rollout in machine.model.rollouts.values()] == [1, 2]
    finally:
        machine.teardown()


def test_a_store_that_cannot_be_opened_leaves_nothing_open() -> None:
    folders: list[Path] = []

    @asynccontextmanager
    async def refusing(folder: Path, clock: Clock) -> AsyncGenerator[Sequence[LightningStore]]:
        folders.append(folder)
        raise ConnectionRefusedError("no server")
        yield []

    loops_before = open_loops()
    with pytest.raises(ConnectionRefusedError):
        check_store(refusing, examples=1, steps=1)
    assert folders and not any(folder.exists() for folder in folders)
    assert open_loops() == loops_before


def open_loops() -> int:
    """Count the event loops that were not closed."""
    gc.collect()
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), asyncio.AbstractEventLoop))
    return sum(not loop.is_closed() for loop in found)


def test_every_method_of_the_interface_is_called() -> None:
    names = set(dir(LightningStore)) - set(dir(object)) - {"close", "capabilities", "otlp_traces_endpoint"}
    source = Path(ops.__file__).read_text()
    assert [name for name in sorted(names) if not name.startswith("_") and f'"{name}"' not in source] == []


def test_an_attempt_has_its_name_in_what_was_read_before_its_number_was_told() -> None:
    names = AttemptNames()
    read = names.from_store(Worker(worker_id="w", current_rollout_id="r0", current_attempt_id="theirs"))
    names.from_store(Attempt(rollout_id="r0", attempt_id="theirs", sequence_id=2, start_time=0.0, status="preparing"))
    assert names.known(read).current_attempt_id == "r0#2"
