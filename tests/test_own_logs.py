"""Whose records a test finds in `caplog`."""

import logging
import threading
from collections.abc import Callable, Generator

import own_logs
import pytest

LogIt = Callable[[str], None]


@pytest.fixture
def thread() -> Generator[LogIt]:
    """A thread that stays, and logs to the logger that it is given the name of."""
    wanted: list[str] = []
    begin, done, end = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        while True:
            begin.wait()
            begin.clear()
            if end.is_set():
                return
            logging.getLogger(wanted.pop()).warning("I am still here")
            done.set()

    def log_it(name: str) -> None:
        wanted.append(name)
        done.clear()
        begin.set()
        assert done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    yield log_it
    end.set()
    begin.set()
    thread.join()


def test_a_library_s_thread_logs_to_the_test_that_started_it_and_to_no_later_one(
    thread: LogIt, caplog: pytest.LogCaptureFixture
) -> None:
    thread("a.library")
    assert caplog.messages == ["I am still here"]

    next(own_logs.pytest_runtest_protocol())  # what pytest calls before each test
    caplog.clear()
    thread("a.library")
    assert caplog.messages == []
    thread("leyden.core.store")
    assert caplog.messages == ["I am still here"]


def test_a_thread_of_the_test_and_the_test_itself_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    thread = threading.Thread(target=lambda: logging.getLogger("a.library").warning("from a thread of the test"))
    thread.start()
    thread.join()
    logging.getLogger("a.library").warning("from the test")
    assert caplog.messages == ["from a thread of the test", "from the test"]
