"""`OwnMethods`: calls an object's own methods, such as `__repr__`, with a time limit.

Such methods may raise, block or never return. Each call runs on a thread of its own, and the caller waits for a bounded
time. A thread cannot be ended from outside, so a method that does not return keeps its thread. Methods of that class
are then not called again. After `MOST_STUCK` such threads, no object's own methods are called any more. A method that
holds the interpreter's lock, or uses all memory, cannot be bounded from inside its process.
"""

import _thread  # `threading.Thread.start` waits without a limit until the thread runs
import contextvars
import threading
from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import Any, TypeVar

from leyden.core.masking import printable

T = TypeVar("T")

SECONDS = 1.0
"""Time limit for one call, and for all calls that one value needs."""
MOST_STUCK = 4
"""Largest number of threads that did not return in time and still run."""
MOST_CLASSES = 256
"""Largest number of classes recorded because a method did not return."""
MOST_OF_A_NAME = 200
"""Largest number of characters of a class's name."""
_SLICE = 0.05
"""Seconds of one wait. A process that was stopped in the meantime loses one slice, not the whole time."""


class MethodHangs(Exception):
    """The method did not return in time, or was not called because others had not returned."""


class MethodRaised(Exception):
    """The method raised; the text is the name of the exception's class."""


class TimeBudget:
    """Remaining seconds for calls; each call reduces it."""

    __slots__ = ("left",)

    def __init__(self, seconds: float = SECONDS) -> None:
        self.left = seconds


class OwnMethods:
    """Calls methods, and records the classes whose methods did not return. Thread-safe."""

    def __init__(self, most_stuck: int = MOST_STUCK) -> None:
        self._most_stuck = most_stuck
        self._lock = threading.Lock()
        self._stuck = 0
        self._avoided: dict[int, type] = {}
        """Classes by id: a metaclass may have a `__hash__` that raises."""

    @property
    def stuck(self) -> int:
        """Number of threads that did not return in time and still run."""
        return self._stuck

    def call(self, kind: type, method: Callable[[], T], time: "TimeBudget") -> T:
        """Return the result of `method`, which calls a method of an object of class `kind`.

        Raises MethodHangs when the method does not return within `time`, and MethodRaised when it raises.
        """
        if time.left <= 0 or self._stuck >= self._most_stuck or id(kind) in self._avoided:
            raise MethodHangs
        call = _Call(self, method, contextvars.copy_context())
        try:
            _thread.start_new_thread(call.run, ())
        except RuntimeError:  # the system has no more threads
            raise MethodHangs from None
        if not call.ended_within(time):
            self._avoid(kind)
            raise MethodHangs
        if call.error is not None:
            raise MethodRaised(call.error)
        return call.result

    def given_up(self, call: "_Call") -> bool:
        """Count the thread of a call that timed out, and return True; return False where the call has just ended."""
        with self._lock:
            if call.done.is_set():
                return False
            call.is_given_up = True
            self._stuck += 1
            return True

    def ended(self, call: "_Call") -> None:
        """Record that a call's thread ends."""
        with self._lock:
            call.done.set()
            if call.is_given_up:
                self._stuck -= 1

    def _avoid(self, kind: type) -> None:
        with self._lock:
            if len(self._avoided) >= MOST_CLASSES:
                self._avoided.clear()
            self._avoided[id(kind)] = kind


class _Call:
    """One call in a thread of its own."""

    def __init__(self, owner: OwnMethods, method: Callable[[], Any], context: contextvars.Context) -> None:
        self._owner, self._method, self._context = owner, method, context
        self.done = threading.Event()
        self.is_given_up = False
        self.result: Any = None
        self.error: str | None = None

    def run(self) -> None:
        try:
            self.result = self._context.run(self._method)
        except BaseException as error:  # any exception of the agent's method counts, SystemExit included
            self.error = short_name(error)
        finally:
            self._owner.ended(self)

    def ended_within(self, time: "TimeBudget") -> bool:
        while time.left > 0:
            began, slice_ = monotonic(), min(time.left, _SLICE)
            ended = self.done.wait(slice_)
            time.left -= min(monotonic() - began, slice_) if ended else slice_
            if ended:
                return True
        return not self._owner.given_up(self)


METHODS = OwnMethods()
"""The shared instance of this process."""

_qualname: Any = type.__dict__["__qualname__"]
_module: Any = type.__dict__["__module__"]


def short_name(value: object) -> str:
    """Return the qualified name of an object's class, without calling its metaclass."""
    return _name_of(type(value))


def type_name(value: object) -> str:
    """Return the name of an object's class with its module; builtin classes without one."""
    return full_name(type(value))


def full_name(kind: type[Any]) -> str:
    """Return a class's name with its module; builtin classes without one."""
    try:
        module = _module.__get__(kind)
    except Exception:  # a class without a module
        module = None
    name = _name_of(kind)
    return name if type(module) is not str or module == "builtins" else f"{module}.{name}"


def _name_of(kind: type[Any]) -> str:
    try:
        return _shown(str.__str__(_qualname.__get__(kind)))
    except Exception:  # a name that is no text
        return "?"


@lru_cache(maxsize=1024)
def _shown(name: str) -> str:
    """Return a class's name without secrets and control characters, since code may create a class with any name."""
    name = printable(name)
    return name if len(name) <= MOST_OF_A_NAME else f"{name[:MOST_OF_A_NAME]}…"
