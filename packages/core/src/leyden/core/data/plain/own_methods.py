"""Calls of an object's own methods, such as `__repr__`, which may raise, block or never end.

A call runs on a thread of its own and is waited for during a bounded time. A thread cannot be ended from outside, so a
method that does not return keeps its thread; the class is not called again, and after `MOST_STUCK` such threads no
object's own methods are called any more. A method that holds the interpreter's lock, or takes all memory, cannot be
bounded from inside its process.
"""

import _thread  # `threading.Thread.start` waits for the thread to run, without a limit
import contextvars
import threading
from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import Any, TypeVar

from leyden.core.masking import mask_text, visible

T = TypeVar("T")

SECONDS = 1.0
"""For one call, and for all calls that one value needs."""
MOST_STUCK = 4
"""Threads that did not return in time and still run."""
MOST_CLASSES = 256
"""Classes that are remembered for a method that did not return."""
MOST_OF_A_NAME = 200
"""Characters of a class's name."""
_SLICE = 0.05
"""Seconds that are waited for at once: a process that was stopped meanwhile has used up one slice, not the time."""


class NoAnswer(Exception):
    """The method did not return in time, or is not called because others did not."""


class Raised(Exception):
    """The method raised; the text names the error's class."""


class Time:
    """Seconds that calls may still take."""

    __slots__ = ("left",)

    def __init__(self, seconds: float = SECONDS) -> None:
        self.left = seconds


class OwnMethods:
    """Calls methods, and remembers the classes whose methods did not return. Safe from any thread."""

    def __init__(self, most_stuck: int = MOST_STUCK) -> None:
        self._most_stuck = most_stuck
        self._lock = threading.Lock()
        self._stuck = 0
        self._avoided: dict[int, type] = {}
        """By their ids: a class may have a metaclass whose `__hash__` raises."""

    @property
    def stuck(self) -> int:
        """Threads that did not return in time and still run."""
        return self._stuck

    def call(self, kind: type, method: Callable[[], T], time: "Time") -> T:
        """Return what `method`, which calls a method of an object of class `kind`, returns.

        Raises NoAnswer when it does not return while there is `time`, Raised when it raises.
        """
        if time.left <= 0 or self._stuck >= self._most_stuck or id(kind) in self._avoided:
            raise NoAnswer
        call = _Call(self, method, contextvars.copy_context())
        try:
            _thread.start_new_thread(call.run, ())
        except RuntimeError:  # the system has no more threads
            raise NoAnswer from None
        if not call.ended_within(time):
            self._avoid(kind)
            raise NoAnswer
        if call.error is not None:
            raise Raised(call.error)
        return call.result

    def given_up(self, call: "_Call") -> bool:
        """Count the thread of a call that is no longer waited for; False where it has just ended."""
        with self._lock:
            if call.done.is_set():
                return False
            call.is_given_up = True
            self._stuck += 1
            return True

    def ended(self, call: "_Call") -> None:
        """Note that a call's thread ends."""
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
    """One call, on its way in a thread of its own."""

    def __init__(self, owner: OwnMethods, method: Callable[[], Any], context: contextvars.Context) -> None:
        self._owner, self._method, self._context = owner, method, context
        self.done = threading.Event()
        self.is_given_up = False
        self.result: Any = None
        self.error: str | None = None

    def run(self) -> None:
        try:
            self.result = self._context.run(self._method)
        except BaseException as error:  # whatever a method of the agent's raises, SystemExit too, is an answer
            self.error = short_name(error)
        finally:
            self._owner.ended(self)

    def ended_within(self, time: "Time") -> bool:
        while time.left > 0:
            began, slice_ = monotonic(), min(time.left, _SLICE)
            ended = self.done.wait(slice_)
            time.left -= min(monotonic() - began, slice_) if ended else slice_
            if ended:
                return True
        return not self._owner.given_up(self)


METHODS = OwnMethods()
"""Those of this process."""

_qualname: Any = type.__dict__["__qualname__"]
_module: Any = type.__dict__["__module__"]


def short_name(value: object) -> str:
    """Return the qualified name of an object's class, whatever its metaclass does."""
    return _name_of(type(value))


def type_name(value: object) -> str:
    """Return the name of an object's class with its module, which builtin classes do without."""
    return full_name(type(value))


def full_name(kind: type[Any]) -> str:
    """Return a class's name with its module."""
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
    """A class's name without secrets and control characters: whoever makes a class at run time may choose any text."""
    name = visible(mask_text(name))
    return name if len(name) <= MOST_OF_A_NAME else f"{name[:MOST_OF_A_NAME]}…"
