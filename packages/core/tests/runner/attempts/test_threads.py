"""Threads for sync agents: the caller waits for no thread to begin."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable

import pytest

from leyden.core.runner.attempts import threads
from leyden.core.runner.attempts.threads import AgentThreads, in_thread

SECONDS = 20
NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="no agent")


def starts(monkeypatch: pytest.MonkeyPatch, before: Callable[[], object]) -> None:
    """Call `before` where Python starts an agent's thread."""
    start = threading.Thread.start

    def changed(self: threading.Thread) -> None:
        if self.name == "leyden-agent":
            before()
        start(self)

    monkeypatch.setattr(threading.Thread, "start", changed)


def test_the_caller_does_not_wait_until_the_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    starts(monkeypatch, lambda: go_on.wait(SECONDS))
    futures = [AgentThreads().submit(abs, number) for number in range(3)]
    assert not any(future.done() for future in futures)
    go_on.set()
    assert [future.result(SECONDS) for future in futures] == [0, 1, 2]


def test_a_thread_that_cannot_start_is_the_error_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    starts(monkeypatch, fail)
    pool = AgentThreads()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.submit(int).result(SECONDS)
    cancelled = pool.submit(int)
    cancelled.cancel()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.submit(int).result(SECONDS)  # the one before did no harm


def test_what_starts_threads_ends_when_it_is_idle_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    pool = AgentThreads()
    for _ in range(2):
        assert pool.submit(int).result(SECONDS) == 0
        until = time.monotonic() + SECONDS
        while any(thread.name == "leyden-agent-starter" for thread in threading.enumerate()):
            assert time.monotonic() < until
            time.sleep(0.01)


async def test_each_call_has_the_context_of_its_caller() -> None:
    async def ask(name: str) -> str:
        NAME.set(name)
        return await in_thread(NAME.get)

    names = [f"agent {number}" for number in range(20)]
    assert await asyncio.gather(*map(ask, names)) == names
    assert await in_thread(NAME.get) == "no agent"
