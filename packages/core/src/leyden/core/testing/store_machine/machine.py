"""`StoreMachine`: calls a store in any order, from several clients at once, and compares its answers with the model.

Concurrent calls must have happened in some order. The machine searches for the orders in which the model answers like
the store. Where these lead to different states, all states are kept until an answer excludes them.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from leyden.core.data.rollout import FINISHED_ROLLOUT, EnqueueRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import LeydenError
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_machine import operations as ops
from leyden.core.testing.store_machine.model import COUNTED, Model
from leyden.core.testing.store_machine.naming import AttemptNames
from leyden.core.testing.store_machine.operations import Operation, Position

Clock: TypeAlias = Callable[[], float]
Opened: TypeAlias = Callable[[Path, Clock], AbstractAsyncContextManager[Sequence[LightningStore]]]
"""Opens an empty store with files in a folder and the time of a clock.

It yields one or more clients of the store, and closes them after the block. A waiting client should be notified of
another client's write within a second.
"""

START = 1000.0
PATIENCE = 15.0
"""Seconds after which a missing notification is a failure, on a very busy machine."""
SECONDS = st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0, 3.0])
CLIENTS = st.integers(0, 2)
RECORDS = ("query_resources", "get_latest_resources", "query_runs", "query_policy_versions")
VIEW = ("query_rollouts", "query_workers", "statistics", *RECORDS)
"""Queries after every step, besides the attempts of rollouts with several attempts, and the metrics of runs."""
CLAIM = "dequeue"
"""Prefix of the names of claims."""


@dataclass(frozen=True)
class Done:
    """An operation and the store's answer, both with the model's ids."""

    name: str
    arguments: dict[str, Any]
    answer: Any
    beside: frozenset[str] = frozenset()
    """Rollouts that concurrent calls name, queue or claim; a claim may skip these where `passing_over` is set."""
    at: float | None = None
    """Time at which the store acted, if that was before the last move of the clock."""


@dataclass
class Waiting:
    """A caller that waits for rollouts."""

    rollout_ids: list[str]
    ends: dict[str, int]
    """Number of ends of each rollout when the wait began."""
    task: "asyncio.Task[list[Rollout]]"


class StoreMachine(RuleBasedStateMachine):
    """One example: a store from its opening to its end."""

    hurry = 1.0
    """Factor of `PATIENCE`."""

    overlapping = True
    """Whether calls may be concurrent; some order of them must then explain the answers."""

    passing_over = False
    """Whether a claim may skip rollouts that concurrent calls change, queue or claim."""

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.now = self._before = START
        """The time, and the time before the last move of the clock."""
        self.models = [Model()]
        """Possible states of the store: several, until an answer shows in which order things happened."""
        self._names = AttemptNames()
        self._waiting: list[Waiting] = []
        self._idle: list[tuple[dict[str, Any], asyncio.Task[Any]]] = []
        """Callers that wait for work: arguments and task."""
        self._failed = False
        self._steps = 0
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        try:
            self.clients = self._runner.run(self._open(opened))
        except BaseException:  # for example, the test is skipped: Hypothesis calls `teardown` only after `__init__`
            self._runner.run(self._stack.aclose())
            self._runner.close()
            raise

    @property
    def model(self) -> Model:
        """Return one of `models`, which do not differ in anything that was queried."""
        return self.models[0]

    async def _open(self, opened: Opened) -> Sequence[LightningStore]:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return await self._stack.enter_async_context(opened(folder, lambda: self.now))

    @initialize(count=st.integers(1, 3), configs=st.permutations(ops.CONFIGS))
    def begin(self, count: int, configs: list[Any]) -> None:
        """Queue some rollouts and claim them."""
        requests = [EnqueueRollout(input=n, rollout_id=f"r{n}", config=configs[n]) for n in range(count)]
        self._run_one(0.0, 0, Operation("enqueue_many_rollouts", {"rollouts": requests}))
        self._run_one(0.0, 0, Operation("dequeue_many_rollouts", {"limit": max(1, count - 1), "worker_id": "w0"}))

    def _run_one(self, seconds: float, client: int, operation: Operation) -> None:
        self._run(self._perform(seconds, [(client, operation)]))

    enqueue = rule(seconds=SECONDS, client=CLIENTS, operation=ops.ENQUEUES)(_run_one)
    claim = rule(seconds=SECONDS, client=CLIENTS, operation=ops.CLAIMS)(_run_one)
    change_attempt = rule(seconds=SECONDS, client=CLIENTS, operation=ops.ATTEMPT_CHANGES)(_run_one)
    change_rollout = rule(seconds=SECONDS, client=CLIENTS, operation=ops.ROLLOUT_CHANGES)(_run_one)
    send_spans = rule(seconds=SECONDS, client=CLIENTS, operation=ops.SPANS)(_run_one)
    record = rule(seconds=SECONDS, client=CLIENTS, operation=ops.RECORDS)(_run_one)
    record_run = rule(seconds=SECONDS, client=CLIENTS, operation=ops.RUNS)(_run_one)
    ask = rule(seconds=SECONDS, client=CLIENTS, operation=ops.QUESTIONS)(_run_one)

    @rule(seconds=SECONDS, calls=st.lists(st.tuples(CLIENTS, ops.ANY), min_size=2, max_size=3))
    def at_once(self, seconds: float, calls: list[tuple[int, Operation]]) -> None:
        """Make several calls at once, or in turn where the store's calls may not overlap."""
        self._run(self._perform(seconds, calls, in_turn=not self.overlapping))

    @rule(seconds=SECONDS, calls=st.lists(st.tuples(CLIENTS, ops.CHANGES), min_size=3, max_size=6))
    def in_turn(self, seconds: float, calls: list[tuple[int, Operation]]) -> None:
        """Make several calls one after the other, and compare only then."""
        self._run(self._perform(seconds, calls, in_turn=True))

    @rule(client=CLIENTS, positions=st.lists(ops.ROLLOUT, min_size=1, max_size=2))
    def wait(self, client: int, positions: list[Position]) -> None:
        """Begin to wait for rollouts; without a precondition, since the store decides which calls end first."""
        if len(self._waiting) < 3:
            self._run(self._wait(client, [position.found(self.model) for position in positions]))

    @rule(client=CLIENTS, limit=st.integers(1, 2), queue=ops.QUEUE)
    def wait_for_work(self, client: int, limit: int, queue: str = "") -> None:
        """Begin to wait for work, unless there is work already or claims may not overlap other calls."""
        if self.overlapping and len(self._idle) < 2 and queue not in self.model.queues:
            self._run(self._wait_for_work(client, {"limit": limit, "queue": queue}))

    def teardown(self) -> None:
        """Compare everything, through every client, and close the store."""
        try:
            if not self._failed:
                for client in range(len(self.clients)):
                    self._run(
                        self._perform(0.0, [(client, operation) for operation in self._everything()], in_turn=True)
                    )
        finally:
            self._runner.run(self._close())
            self._runner.close()

    # --- Steps

    def _run(self, work: Any) -> None:
        try:
            self._runner.run(work)
        except BaseException:
            self._failed = True
            type(self).hurry = 0.02  # while Hypothesis shrinks the failure
            raise

    async def _perform(self, seconds: float, calls: Sequence[tuple[int, Operation]], *, in_turn: bool = False) -> None:
        if seconds:
            self._before, self.now = self.now, self.now + seconds
        found = [(client, operation.name, operation.found(self.model)) for client, operation in calls]
        if in_turn:
            done = [await self._call(*call) for call in found]
        else:
            done = list(await asyncio.gather(*(self._call(*call) for call in found)))
        await self._explain(done, in_turn=in_turn)

    async def _call(self, client: int, name: str, arguments: dict[str, Any]) -> Done:
        store = self.clients[client % len(self.clients)]
        store_arguments = {key: self._names.to_store(value) for key, value in arguments.items()}
        answer = await _outcome(getattr(store, name)(**store_arguments))
        if name == "statistics":
            answer = {key: answer[key] for key in COUNTED}  # a store may have more counts
        return Done(name, arguments, self._names.from_store(answer))

    async def _wait(self, client: int, rollout_ids: list[str]) -> None:
        known = {name: self.model.rollouts[name].ends for name in rollout_ids if name in self.model.rollouts}
        ends = {name: count - self._is_finished(name) for name, count in known.items()}
        store = self.clients[client % len(self.clients)]
        task = asyncio.create_task(store.wait_for_rollouts(rollout_ids=rollout_ids))
        self._waiting.append(Waiting(rollout_ids, ends, task))
        await self._check_waiting()

    async def _wait_for_work(self, client: int, arguments: dict[str, Any]) -> None:
        store = self.clients[client % len(self.clients)]
        task = asyncio.create_task(store.dequeue_many_rollouts(**arguments, timeout=600.0))
        self._idle.append((arguments, task))
        await self._explain([])

    async def _explain(self, done: list[Done], *, in_turn: bool = False) -> None:
        """Find the orders in which all calls may have happened, together with claims of waiting callers."""
        claims: list[Done] = []
        while True:
            claims += self._claimed_by_waiting()
            self._steps += 1
            view = await self._view()
            # A query during the start of an attempt may have returned its id before any answer assigned that id to an
            # attempt.
            done, claims = (
                [replace(one, answer=self._names.known(one.answer)) for one in some] for some in (done, claims)
            )
            found = [self._beside(one, [*(() if in_turn else done), *claims]) for one in done]
            waited = [self._beside(one, [*done, *claims]) for one in claims]
            orders = _merged(found, waited) if in_turn else permutations([*found, *waited])
            after = _distinct(model for order in orders for model in self._after(order, view))
            served = [task for arguments, task in self._idle if after and arguments["queue"] in after[0].queues]
            if after and not served:
                break
            # If no order explains the answers, a pending claim of a waiting caller may still explain them.
            patience = max(2.0, PATIENCE * self.hurry) if after else PATIENCE * self.hurry
            if not await _first_of(served or [task for _, task in self._idle], patience):
                assert not after, "there is work, and no waiting caller was notified"
                raise AssertionError(self._report([*done, *claims, *view]))
        self.models = after
        await self._check_waiting()

    def _beside(self, one: Done, others: Sequence[Done]) -> Done:
        if not self.passing_over or not one.name.startswith(CLAIM):
            return one
        named = (name for other in others if other is not one for name in _named(other))
        return replace(one, beside=frozenset(named))

    async def _view(self) -> list[Done]:
        """Query everything that can distinguish explanations; a rollout's answer has only its latest attempt."""
        view = [await self._call(self._steps, name, {}) for name in VIEW]
        retried = [
            one.rollout_id for one in view[0].answer if getattr(one, "attempt", None) and one.attempt.sequence_id > 1
        ]
        queries = [("query_attempts", {"rollout_id": name}) for name in retried]
        queries += [("query_metrics", {"run_id": run_id}) for run_id in self.model.runs]
        return view + [await self._call(self._steps, name, arguments) for name, arguments in queries]

    def _claimed_by_waiting(self) -> list[Done]:
        finished = [one for one in self._idle if one[1].done()]
        self._idle = [one for one in self._idle if not one[1].done()]
        answers = [(arguments, self._names.from_store(task.result())) for arguments, task in finished]
        return [
            Done("dequeue_many_rollouts", arguments, answer, at=self._earlier(answer)) for arguments, answer in answers
        ]

    def _earlier(self, claimed: Any) -> float | None:
        """Return the time at which a waiting call claimed, if it read the clock before the clock's last move."""
        starts = {rollout.attempt.start_time for rollout in claimed}
        return self._before if starts == {self._before} else None

    def _after(self, order: Sequence[Done], view: Sequence[Done]) -> Iterable[Model]:
        """Yield each model after `order` with the store's answers, for each order in which overdue attempts may end."""
        for before in self.models:
            before.now = self.now
            for late in permutations(range(len(before.late()))):
                model = before.copied()
                model.check_health(late)
                if all(_agrees(model, done) for done in (*order, *view)):
                    yield model

    def _report(self, done: Sequence[Done]) -> str:
        """Return a report of the differing answers of the model, with the calls in the given order."""
        model = self.model.copied()
        model.now = self.now
        lines = ["no order explains these answers; in the order given:"]
        for one in done:
            try:
                expected = _expected(model, one)
            except AssertionError as error:
                expected = error
            lines.append(f"{one.name} {one.arguments}\n    the store: {one.answer}")
            lines += [] if expected == one.answer else [f"    the model: {expected}"]
        return "\n".join(lines)

    # --- Waiting callers

    def _is_finished(self, rollout_id: str) -> bool:
        return self.model.rollouts[rollout_id].status in FINISHED_ROLLOUT

    async def _check_waiting(self) -> None:
        for waiting in list(self._waiting):
            if all(map(self._is_finished, waiting.ends)):
                await asyncio.wait([waiting.task], timeout=max(2.0, PATIENCE * self.hurry))
                assert waiting.task.done(), f"{waiting.rollout_ids} are finished, and who waits for them was not told"
            if waiting.task.done():
                early = [name for name, ends in waiting.ends.items() if self.model.rollouts[name].ends <= ends]
                assert not early, f"a wait was over while {early} had not ended"
                found = waiting.task.result()
                assert [rollout.rollout_id for rollout in found] == list(waiting.ends), "not those that were asked for"
                assert all(rollout.status in FINISHED_ROLLOUT for rollout in found), "not all were finished"
                self._waiting.remove(waiting)

    def _everything(self) -> list[Operation]:
        found = [Operation(name, {}) for name in RECORDS]
        found += [Operation("query_metrics", {"run_id": run_id}) for run_id in self.model.runs]
        for rollout_id in self.model.rollouts:
            for name in ("query_attempts", "query_spans", "get_rollout_by_id"):
                found.append(Operation(name, {"rollout_id": rollout_id}))
        for resources_id, versions in self.model.resources.items():
            found += [
                Operation("get_resources_by_id", {"resources_id": resources_id, "version": update.version})
                for update in versions
            ]
        return found

    async def _close(self) -> None:
        tasks = [waiting.task for waiting in self._waiting] + [task for _, task in self._idle]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()


def _merged(first: Sequence[Done], others: Sequence[Done]) -> Iterable[list[Done]]:
    """Yield every order in which `first` keeps its order and `others` come at any time."""
    if not others:
        yield list(first)
        return
    for merged in _merged(first, others[1:]):
        for position in range(len(merged) + 1):
            yield [*merged[:position], others[0], *merged[position:]]


def _distinct(models: Iterable[Model]) -> list[Model]:
    """Return the models without duplicates."""
    found: list[Model] = []
    for model in models:
        if all(vars(model) != vars(other) for other in found):
            found.append(model)
    return found


async def _first_of(tasks: Sequence["asyncio.Task[Any]"], patience: float) -> bool:
    """Wait until one of `tasks` is done; return whether one is."""
    return bool(tasks) and bool((await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED))[0])


async def _outcome(work: Any) -> Any:
    """Return the result of a call; for an error, its class."""
    try:
        return await work
    except (LeydenError, ValueError, TypeError) as error:
        return type(error)


def _named(value: Any) -> Iterator[str]:
    """Yield the ids of the rollouts that a call names, queues or claims, and all other text in it."""
    if isinstance(value, Done):
        yield from _named(list(value.arguments.values()))
        yield from _named(value.answer if value.name.startswith((CLAIM, "enqueue")) else None)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:  # type: ignore[reportUnknownVariableType] an argument may be anything
            yield from _named(item)
    elif isinstance(value, (Rollout, EnqueueRollout, Span)):
        yield from _named(value.rollout_id)


def _expected(model: Model, done: Done) -> Any:
    model.check_health()
    model.beside = done.beside
    now, model.now = model.now, model.now if done.at is None else done.at
    try:
        return getattr(model, done.name)(done.answer, **done.arguments)
    except (LeydenError, ValueError, TypeError) as error:
        return type(error)
    finally:
        model.now = now


def _agrees(model: Model, done: Done) -> bool:
    try:
        return _expected(model, done) == done.answer
    except AssertionError:  # the store made a choice that it may not make
        return False
