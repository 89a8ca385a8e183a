"""The event loop that agents run on, and what SIGTERM means to it and to the processes that agents fork."""

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed; None stands for asyncio's own."""
    try:
        import uvloop
    except ImportError:  # not made for Windows
        return None
    return uvloop.new_event_loop


def on_sigterm(do: Callable[[], object]) -> None:
    """Have the running loop call `do` when this process gets a SIGTERM.

    Processes that an agent forks from this one end by it, as they would without us. They inherit the loop's handler and
    the descriptor through which it notifies the loop: a pool that ends its processes would end this one.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, do)
    _forks_end_by_sigterm()


@functools.cache
def _forks_end_by_sigterm() -> None:
    os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_end_by_sigterm)


_held = threading.local()
"""The signals that the thread which forks had blocked before. A SIGTERM waits until its process has its own handler."""


def _hold_sigterm() -> None:
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _end_by_sigterm() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()
