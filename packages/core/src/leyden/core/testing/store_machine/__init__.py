"""`check_store`: any interleaving of everything that can be done to a store, held against the state tables.

    @asynccontextmanager
    async def opened(folder: Path, clock: Callable[[], float]) -> AsyncGenerator[Sequence[LightningStore]]:
        stores = [await MyStore.open(folder / "store.db", clock) for _ in range(2)]
        yield stores
        for store in stores:
            await store.close()

    def test_any_interleaving_of_operations() -> None:
        check_store(opened, examples=20)

`StoreContract` says in words what a store promises; this finds the combinations that nobody thought of. The model in
`states` and `model` is a second telling of the same promises and shares no code with any store. Needs Hypothesis.
"""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from leyden.core.testing.store_machine.machine import Clock, Opened, StoreMachine

__all__ = ["Clock", "Opened", "StoreMachine", "check_store"]


def check_store(
    opened: Opened, *, examples: int, steps: int = 30, overlapping: bool = True, passing_over: bool = False
) -> None:
    """Do up to `steps` things to each of `examples` new stores; raises AssertionError with the shortest way to fail.

    `opened` gives the clients of one store, which are used at once; what goes wrong is told as the calls to make.
    Without `overlapping` calls come one after the other, but for those that wait for rollouts. With `passing_over` a
    claim that finds anything may leave out what the calls beside it change or claim just then (`SKIP LOCKED`).
    """

    class Machine(StoreMachine):
        def __init__(self) -> None:
            self.overlapping, self.passing_over = overlapping, passing_over
            super().__init__(opened)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[phase for phase in Phase if phase is not Phase.explain],  # which traces every line: minutes
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
