import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import anyio
import anyio.to_thread
import pytest

from leyden.core.testing import factories
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import OpenAttempt, current_attempt, is_outside, open_attempt, outside_attempt


@pytest.fixture(autouse=True)
def carried() -> Iterator[None]:
    context_propagation.install()
    yield
    context_propagation.uninstall()


def attempt(name: str) -> OpenAttempt:
    return factories.attempt(attempt_id=name)


def name() -> str | None:
    found = current_attempt()
    return None if found is None else found.attempt_id


def name_for(_: int) -> str | None:
    return name()


def test_a_thread_works_for_the_attempt_that_starts_it() -> None:
    seen: list[str | None] = []

    class Own(threading.Thread):
        def run(self) -> None:
            seen.append(name())

    with open_attempt(attempt("a")):
        threads = [threading.Thread(target=lambda: seen.append(name())), Own()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    after = threading.Thread(target=lambda: seen.append(name()))
    after.start()
    after.join()
    assert seen == ["a", "a", None]
    assert all("run" not in vars(thread) for thread in (*threads, after))


def test_a_pool_works_for_whoever_submits_even_in_threads_that_others_started() -> None:
    with ThreadPoolExecutor(1) as pool:
        with open_attempt(attempt("a")):
            first = pool.submit(name)  # starts the pool's only thread
        second = pool.submit(name)
        with open_attempt(attempt("b")):
            third = [pool.submit(name).result(), *pool.map(name_for, range(2))]
        with outside_attempt():
            fourth = pool.submit(is_outside)
        assert (first.result(), second.result(), third) == ("a", None, ["b", "b", "b"])
        assert fourth.result()
        assert not pool.submit(is_outside).result()


async def test_run_in_executor_carries_too() -> None:
    loop = asyncio.get_running_loop()
    with open_attempt(attempt("a")):
        assert await loop.run_in_executor(None, name) == "a"


def test_errors_and_results_of_a_pool_are_unchanged() -> None:
    def fail(value: int, *, by: int) -> float:
        return value / by

    with ThreadPoolExecutor(1) as pool, open_attempt(attempt("a")):
        assert pool.submit(fail, 6, by=3).result() == 2
        with pytest.raises(ZeroDivisionError):
            pool.submit(fail, 6, by=0).result()


def test_uninstall_undoes_install_exactly() -> None:
    context_propagation.uninstall()
    before = threading.Thread.start, ThreadPoolExecutor.submit
    context_propagation.install()
    context_propagation.install()
    assert threading.Thread.start is not before[0]
    context_propagation.uninstall()
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == before
    context_propagation.uninstall()
    with open_attempt(attempt("a")), ThreadPoolExecutor(1) as pool:
        assert pool.submit(name).result() is None


def test_a_callback_works_for_whoever_asked_for_it() -> None:
    seen: list[str | None] = []
    go = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(go.wait, 5)
        future.add_done_callback(lambda _: seen.append(name()))
        with open_attempt(attempt("a")):
            future.add_done_callback(lambda _: seen.append(name()))
            go.set()
            pool.submit(name).result()  # the pool's only thread is done with the callbacks
    assert seen == [None, "a"]


def test_a_timer_works_for_the_attempt_that_sets_it() -> None:
    seen: list[str | None] = []
    with open_attempt(attempt("a")):
        timer = threading.Timer(0, lambda: seen.append(name()))
        timer.start()
        timer.join()
    assert seen == ["a"]


def test_a_pool_of_multiprocessings_threads_works_for_whoever_asks() -> None:
    with open_attempt(attempt("a")), ThreadPool(2) as pool:
        found: list[Any] = [pool.apply(name), pool.map(name_for, range(4)), list(pool.imap(name_for, range(2)))]
        with open_attempt(attempt("b")):
            found += [pool.apply(name), *set(pool.starmap(name_for, [(1,), (2,)])), *set(pool.imap(name_for, [1]))]
        with outside_attempt():
            assert pool.apply(is_outside)
    assert found == ["a", ["a"] * 4, ["a"] * 2, "b", "b", "b"]


@pytest.mark.integration
def test_a_pool_imported_after_install_carries_and_is_left_as_it_was() -> None:
    script = """
import sys
from leyden.core.tracing import context_propagation
context_propagation.install()
assert "multiprocessing.pool" not in sys.modules
from multiprocessing.pool import ThreadPool
assert "imap" in vars(ThreadPool)
context_propagation.uninstall()
assert not {"imap", "apply_async", "_map_async"} & set(vars(ThreadPool))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


async def test_what_an_event_loop_runs_later_carries_by_itself() -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    async def note() -> None:
        seen.put_nowait(name())

    def note_now() -> None:
        seen.put_nowait(name())

    with open_attempt(attempt("a")):
        loop.call_soon(note_now)
        loop.call_later(0, note_now)
        loop.call_soon_threadsafe(note_now)
        asyncio.ensure_future(note()).add_done_callback(lambda _: note_now())
        assert await asyncio.to_thread(name) == "a"
        assert await anyio.to_thread.run_sync(name) == "a"
        await asyncio.to_thread(asyncio.run_coroutine_threadsafe, note(), loop)
        assert [await seen.get() for _ in range(6)] == ["a"] * 6


async def test_two_attempts_share_anyios_threads_without_mixing() -> None:
    async def ask(which: str) -> str | None:
        with open_attempt(attempt(which)):
            return await anyio.to_thread.run_sync(name)

    names = [str(number) for number in range(20)]
    assert await asyncio.gather(*(ask(which) for which in names)) == names
