"""What VERL would wait for in silence is told of, once: lost parts of its queue, and room that there is not."""

import threading
from collections.abc import Callable, Set

import pytest

from leyden.core.algorithm.verl.inside_verl.monitors import report_repeated, watch_parts

BOTH = frozenset({"controller", "unit"})
ONE = frozenset({"unit"})


class Looks:
    """Gives what it is told to, one after the other, and the last for ever; `done` when that has been seen thrice."""

    def __init__(self, *found: Set[str] | Exception) -> None:
        self._found, self.done = list(found), threading.Event()
        self._last = 0

    def __call__(self) -> Set[str]:
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        self._last += len(self._found) == 1
        if self._last > 3:
            self.done.set()
        if isinstance(found, Exception):
            raise found
        return found


def lost(there: Callable[[], Set[str]], wait: threading.Event) -> list[list[str]]:
    """What is told of until `wait`."""
    told: list[list[str]] = []
    with watch_parts(there, told.append, every=0.01):
        wait.wait(5)
    return told


def test_a_part_that_stays_away_is_told_of_once() -> None:
    told: list[list[str]] = []
    heard = threading.Event()

    def hear(gone: list[str]) -> None:
        told.append(gone)
        heard.set()

    with watch_parts(Looks(BOTH, BOTH, ONE), hear, every=0.01):
        assert heard.wait(5)
    assert told == [["controller"]]


def test_a_part_that_is_missed_once_is_not_lost() -> None:
    looks = Looks(BOTH, ONE, BOTH, ONE, BOTH)
    assert lost(looks, looks.done) == []


def test_what_does_not_answer_is_no_sign(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks(BOTH, OSError("busy"))
    assert lost(looks, looks.done) == []
    assert caplog.messages[0] == "could not check VERL's queue: busy"


def test_after_an_error_a_loss_is_found_that_ray_reports_late() -> None:
    with watch_parts(Looks(BOTH, BOTH, ONE), lambda gone: None, every=60, error_wait=5) as gone:
        assert gone() == ["controller"]


def test_after_an_error_that_no_loss_caused_nothing_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    with watch_parts(Looks(BOTH), lambda gone: None, every=60, error_wait=0.01) as gone:
        assert gone() == []
    with watch_parts(Looks(BOTH, OSError("busy")), lambda gone: None, every=60, error_wait=0.01) as gone:
        assert gone() == []
    assert caplog.messages == ["could not check VERL's queue: busy"]


def test_what_is_waited_for_for_long_is_told_of_once_and_what_changes_again() -> None:
    told: list[str] = []
    seen = [None, "one GPU", "two GPUs", "two GPUs", "two GPUs", None, "two GPUs", "two GPUs", "a CPU", "a CPU"]
    done = threading.Event()

    def see() -> str | None:
        if len(seen) == 1:
            done.set()
        return seen.pop(0) if len(seen) > 1 else None

    with report_repeated(see, told.append, every=0.01):
        assert done.wait(5)
    assert told == ["two GPUs"]
    seen[:] = ["a CPU", "a CPU", "a GPU", "a GPU", None]
    done.clear()
    with report_repeated(see, told.append, every=0.01):
        assert done.wait(5)
    assert told[1:] == ["a CPU", "a GPU"]


def test_nothing_is_looked_at_afterwards() -> None:
    looks = Looks(BOTH)
    lost(looks, looks.done)
    looks.done.clear()
    assert not looks.done.wait(0.1)
