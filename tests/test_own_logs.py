"""Whose records a test finds in `caplog`."""

import logging
import threading
from collections.abc import Callable, Generator

import pytest

LogIt = Callable[[str], None]


@pytest.fixture(scope="module")
def earlier() -> Generator[LogIt]:
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


def test_a_thread_is_the_test_s_own_where_it_was_started_in_it(
    earlier: LogIt, caplog: pytest.LogCaptureFixture
) -> None:
    earlier("a.library")
    assert caplog.messages == ["I am still here"]


def test_a_library_s_thread_of_an_earlier_test_logs_nothing_that_a_test_sees(
    earlier: LogIt, caplog: pytest.LogCaptureFixture
) -> None:
    earlier("a.library")
    assert caplog.messages == []
    earlier("leyden.core.store")
    thread = threading.Thread(target=lambda: logging.getLogger("a.library").warning("from a thread of the test"))
    thread.start()
    thread.join()
    logging.getLogger("a.library").warning("from the test")
    assert caplog.messages == ["I am still here", "from a thread of the test", "from the test"]
