"""A pytest plugin: `caplog` holds nothing that a library logs in a thread which an earlier test started.

Some libraries keep a thread for the life of a process: the tracing of the OpenAI Agents SDK sends what it has every few
seconds, tries again and logs each failure, whichever test runs by then. Leyden's own records are kept.
"""

import logging
import threading
from collections.abc import Generator
from weakref import WeakSet

import pytest


class OfEarlierTests(logging.Filter):
    """Drops the records of threads that were there before the test, but for Leyden's own."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: WeakSet[threading.Thread] = WeakSet()

    def begin(self) -> None:
        """Begin a test: only threads that start from here on, and the main thread, are its own."""
        self._threads = WeakSet(thread for thread in threading.enumerate() if thread is not threading.main_thread())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record may be the test's."""
        return record.name.partition(".")[0] == "leyden" or threading.current_thread() not in self._threads


_filter = OfEarlierTests()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Begin a test."""
    _filter.begin()
    return (yield)


@pytest.fixture(autouse=True)
def _only_own_logs(caplog: pytest.LogCaptureFixture) -> None:
    if _filter not in caplog.handler.filters:
        caplog.handler.addFilter(_filter)
