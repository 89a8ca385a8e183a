"""Threads for sync agents: one daemon thread per call, so that an agent that hangs holds nobody's place.

A thread cannot be killed. One that never returns costs its memory until the worker process ends, and does not keep
the process from ending. How many calls run at once is the runner's business.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class AgentThreads(ThreadPoolExecutor):
    """An executor without a limit or a queue; the subclass is what an event loop accepts as its default executor."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a new daemon thread."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except StopIteration as error:
                future.set_exception(_not_a_stop(error))
            except BaseException as error:  # whoever awaits the future decides
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="leyden-agent", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return at once: the threads end with the process."""


_THREADS = AgentThreads()


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread of its own with a copy of this context.

    Cancelling the await leaves the thread running, unheard.
    """
    context = contextvars.copy_context()
    call: Callable[[], Any] = lambda: context.run(function, *args, **kwargs)  # noqa: E731  (ParamSpec is lost in a def)
    return await asyncio.wrap_future(_THREADS.submit(call))


def _not_a_stop(error: StopIteration) -> RuntimeError:
    """A future refuses StopIteration, and would never finish."""
    wrapped = RuntimeError(f"StopIteration: {error}")
    wrapped.__cause__ = error
    return wrapped
