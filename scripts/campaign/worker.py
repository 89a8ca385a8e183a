"""One worker process: runs the rollouts in its standard input, and writes what became of each call to its output.

Its process is set up as a runner's is: routing that fails closed, attempts carried into threads, whole clients.
"""

import asyncio
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from campaign.agents import AgentAtWork, Outcome, in_tasks, in_threads
from campaign.clients import ASYNC, BLOCKING
from campaign.plan import ROUTES, RolloutPlan
from leyden.core.runner.attempts.thread_safety import prepare_first_use
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.wire import gateway_pool, routing

Way: TypeAlias = Literal["tasks", "threads"]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to run."""

    plan: RolloutPlan
    rollout_id: str
    attempt_id: str
    token: str
    gateway_url: str


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker does, on one line."""

    at_once: int
    way: Way
    work: list[Work]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has imported all it needs."""


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A rollout is under way."""

    rollout: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A rollout has ended."""

    rollout: int


Message: TypeAlias = Ready | Began | Outcome | Done

_writing = threading.Lock()


def send(message: Message) -> None:
    """Write one line."""
    with _writing:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()


async def run_tasks(orders: Orders) -> None:
    """Run rollouts as tasks of one event loop."""
    room = asyncio.Semaphore(orders.at_once)

    async def run(work: Work) -> None:
        async with room:
            with _opened(work) as attempt:
                await in_tasks(lambda _: AgentAtWork(work.plan, attempt, ASYNC, send), work.plan)
            send(Done(work.plan.number))

    await asyncio.gather(*map(run, orders.work))
    await gateway_pool.aclose()


def run_threads(orders: Orders) -> None:
    """Run rollouts in threads."""

    def run(work: Work) -> None:
        with _opened(work) as attempt:
            in_threads(lambda _: AgentAtWork(work.plan, attempt, BLOCKING, send), work.plan)
        send(Done(work.plan.number))

    with ThreadPoolExecutor(orders.at_once) as pool:
        for done in [pool.submit(partial(run, work)) for work in orders.work]:
            done.result()


@contextmanager
def _opened(work: Work) -> Generator[OpenAttempt]:
    attempt = OpenAttempt(
        rollout_id=work.rollout_id,
        attempt_id=work.attempt_id,
        token=work.token,
        gateway_url=work.gateway_url,
        trace_id=f"{work.plan.number + 1:032x}",
        mode=work.plan.mode,
        routes=ROUTES,
    )
    with open_attempt(attempt):
        send(Began(work.plan.number))
        yield attempt


def main() -> None:
    """Run what is ordered."""
    context_propagation.install()
    routing.install(fail_closed=True)
    prepare_first_use()
    send(Ready())
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    if orders.way == "tasks":
        asyncio.run(run_tasks(orders))
    else:
        run_threads(orders)
    routing.uninstall()


if __name__ == "__main__":
    main()
