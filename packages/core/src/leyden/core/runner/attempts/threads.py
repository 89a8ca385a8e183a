"""Threads for sync agents: one daemon thread per call, so that an agent that hangs does not occupy a pool's thread.

A thread cannot be killed. A call that never returns costs memory until the worker process ends, and does not delay that
end. The runner limits how many calls run at once.
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
    """Executor without a limit or a queue.

    It is a subclass because an event loop accepts only a ThreadPoolExecutor as its default executor.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a new daemon thread and return the future of its result."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except StopIteration as error:
                future.set_exception(_not_a_stop(error))
            except BaseException as error:  # the caller that awaits the future handles it
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="leyden-agent", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return at once. The threads end with the process."""


_THREADS = AgentThreads()


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread of its own, with a copy of this context, and return its result.

    Cancelling the await does not stop the thread. Its result is then discarded.
    """
    context = contextvars.copy_context()
    call: Callable[[], Any] = lambda: context.run(function, *args, **kwargs)  # noqa: E731  (ParamSpec is lost in a def)
    return await asyncio.wrap_future(_THREADS.submit(call))


def _not_a_stop(error: StopIteration) -> RuntimeError:
    """Wrap a StopIteration, which a future does not accept: the future would never finish."""
    wrapped = RuntimeError(f"StopIteration: {error}")
    wrapped.__cause__ = error
    return wrapped
