"""The event loop of the trainer's side: how it is run and stopped, and how two things are awaited together."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


def run_loop(main: Coroutine[Any, Any, A]) -> A:
    """Run `main` on a new event loop, the fast one where there is one; Ctrl-C cancels it."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(main)
    return uvloop.run(main)


@contextlib.contextmanager
def stopped_by_sigterm() -> Generator[asyncio.Event]:
    """Give an event that SIGTERM sets, inside the block; afterwards the signal's handler is Python's own again."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        yield stopped
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def together(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Return what both return. Where one fails, the other is cancelled, and the error raised once it has ended."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(first), asyncio.create_task(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks[0].result(), tasks[1].result()
