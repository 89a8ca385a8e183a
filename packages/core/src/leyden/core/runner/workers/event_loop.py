"""Event loop of agents, with handling of SIGTERM in this process and in processes that agents fork."""

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory where uvloop is installed. None means asyncio's default loop."""
    try:
        import uvloop
    except ImportError:  # uvloop does not exist for Windows
        return None
    return uvloop.new_event_loop


def on_sigterm(do: Callable[[], object]) -> None:
    """Have the running loop call `do` when this process receives SIGTERM.

    Processes that an agent forks from this one end on SIGTERM, as they would without Leyden. They would otherwise
    inherit the loop's handler and the descriptor through which it wakes the loop. A process pool that terminates its
    processes would then end this one.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, do)
    _forks_end_by_sigterm()


@functools.cache
def _forks_end_by_sigterm() -> None:
    os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_end_by_sigterm)


_held = threading.local()
"""Signal mask of the forking thread before the fork.

SIGTERM stays blocked until the forked process has its own handler.
"""


def _hold_sigterm() -> None:
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _end_by_sigterm() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()
