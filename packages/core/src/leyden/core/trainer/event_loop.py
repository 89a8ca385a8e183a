"""Event loop of the trainer process: starts it, stops it on SIGTERM, and awaits two coroutines together."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


def run_loop(main: Coroutine[Any, Any, A]) -> A:
    """Run `main` on a new event loop and return its result; Ctrl-C cancels it. Uses uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:  # uvloop does not support Windows
        return asyncio.run(main)
    return uvloop.run(main)


class Terminated(BaseException):
    """SIGTERM has ended the work. Like KeyboardInterrupt, it is no error that code recovers from."""


async def ended_by_sigterm(main: Coroutine[Any, Any, A]) -> A:
    """Await `main`. SIGTERM cancels it, as Ctrl-C does, and raises `Terminated` once it has ended.

    Signals can be handled in the main thread only, and not on Windows; elsewhere this only awaits.
    """
    loop, task, received = asyncio.get_running_loop(), asyncio.current_task(), list[bool]()
    assert task is not None

    def cancel() -> None:
        received.append(True)
        task.cancel()

    try:
        loop.add_signal_handler(signal.SIGTERM, cancel)
    except (NotImplementedError, RuntimeError, ValueError):
        return await main
    try:
        return await main
    except asyncio.CancelledError:
        if received:
            raise Terminated from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextlib.contextmanager
def stopped_by_sigterm() -> Generator[asyncio.Event]:
    """Context manager: yields an event that SIGTERM sets. On exit it restores Python's default signal handler."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        yield stopped
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def run_both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Await both coroutines and return both results.

    If one coroutine fails, the other is cancelled. The error is raised once both have ended.
    """
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
