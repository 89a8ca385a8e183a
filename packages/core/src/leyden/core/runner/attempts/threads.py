"""Threads for sync agents: one daemon thread per call, so that an agent that hangs does not occupy a pool's thread.

A thread cannot be killed. A call that never returns costs memory until the worker process ends, and does not delay that
end. The runner limits how many calls run at once.

`Thread.start` waits until the new thread runs. While other agents compute, each of them holds Python's interpreter lock
in turn before that, so a batch of starts would block the event loop until most agents have ended. Another thread
therefore starts the threads.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS = 1.0
"""How long the thread that starts others waits for more work before it ends."""
_Start: TypeAlias = "tuple[contextvars.Context, threading.Thread, Future[Any]]"
"""The context in which a thread is started, the thread, and the future of its result."""


class AgentThreads(ThreadPoolExecutor):
    """Executor without a limit or a queue.

    It is a subclass because an event loop accepts only a ThreadPoolExecutor as its default executor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._starts: queue.SimpleQueue[_Start] = queue.SimpleQueue()
        self._starter: threading.Thread | None = None
        self._lock = threading.Lock()

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

        self._start_soon(threading.Thread(target=work, name="leyden-agent", daemon=True), future)
        return future

    def _start_soon(self, thread: threading.Thread, future: "Future[Any]") -> None:
        """Have `thread` started in the caller's context. If that fails, `future` gets the error."""
        with self._lock:
            self._starts.put((contextvars.copy_context(), thread, future))
            if self._starter is None or not self._starter.is_alive():
                self._starter = threading.Thread(target=self._start_threads, name="leyden-agent-starter", daemon=True)
                contextvars.Context().run(self._starter.start)  # it serves other callers, too

    def _start_threads(self) -> None:
        while True:
            try:
                context, thread, future = self._starts.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._starts.empty():
                        self._starter = None
                        return
                continue
            try:
                context.run(thread.start)
            except Exception as error:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

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
