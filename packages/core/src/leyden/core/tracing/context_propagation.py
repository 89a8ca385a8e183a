"""Propagation of the open attempt into threads: work that a context starts or submits belongs to its attempt.

`Thread.start`, thread pools (`concurrent.futures` and `multiprocessing.pool.ThreadPool`) and callbacks of futures copy
the caller's context. They do so only inside an attempt or an `outside_attempt` block. Everything else is unchanged.
Tasks and handles of an event loop, and `to_thread`, propagate their context themselves.
"""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from threading import Lock, Thread
from types import ModuleType
from typing import Any

from leyden.core.tracing.context import current_attempt, is_left_over, is_outside
from leyden.core.tracing.patching.in_place import in_place_of

POOL_MODULE = "multiprocessing.pool"
POOL_METHODS = ("apply_async", "_map_async", "imap", "imap_unordered")

_lock = Lock()
_installed = False
_hooked = False
_patched: list[tuple[Any, str, Any, Any]] = []
"""Owner, attribute, previous value (None: it was inherited) and patched value."""


def install() -> None:
    """Start propagation. A second call has no effect."""
    global _installed, _hooked
    with _lock:
        if _installed:
            return
        _installed = True
        _patch(Thread, "start", _wrap_start)
        _patch(ThreadPoolExecutor, "submit", _wrap_submit)
        _patch(Future, "add_done_callback", _wrap_add_done_callback)
        if POOL_MODULE in sys.modules:
            _patch_pool(sys.modules[POOL_MODULE])
        hook, _hooked = not _hooked, True
    if hook:
        import wrapt

        wrapt.register_post_import_hook(_on_import, POOL_MODULE)


def uninstall() -> None:
    """Undo `install` completely.

    A method that another library has wrapped since keeps Leyden's wrapper below, which then does nothing.
    """
    global _installed
    with _lock:
        _installed = False
        for owner, name, original, replacement in _patched:
            if getattr(owner, name) is not replacement:
                continue
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        _patched.clear()


def _on_import(pool: ModuleType) -> None:
    with _lock:
        if _installed:
            _patch_pool(pool)


def _patch_pool(pool: Any) -> None:
    for name in POOL_METHODS:
        _patch(pool.ThreadPool, name, _wrap_map)


def _patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    if all((owner, name) != patch[:2] for patch in _patched):
        found = getattr(owner, name)
        replacement: Any = in_place_of(found, make(found))
        _patched.append((owner, name, found if name in vars(owner) else None, replacement))
        setattr(owner, name, replacement)


def _is_needed() -> bool:
    return _installed and (current_attempt() is not None or is_left_over() or is_outside())


def _wrap_start(original: Callable[[Thread], None]) -> Any:
    def start(self: Thread) -> None:
        if _is_needed():
            _run_in_context(self, copy_context())
        original(self)

    return start


def _wrap_submit(original: Callable[..., Future[Any]]) -> Any:
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not _is_needed():
            return original(self, fn, *args, **kwargs)
        # The pool may start a thread now that later runs other callers' work, so the thread must have an empty context.
        return Context().run(original, self, _with_context(fn), *args, **kwargs)

    return submit


def _wrap_add_done_callback(original: Callable[..., None]) -> Any:
    def add_done_callback(self: Future[Any], fn: Callable[[Future[Any]], object]) -> None:
        original(self, _with_context(fn) if _is_needed() else fn)

    return add_done_callback


def _wrap_map(original: Callable[..., Any]) -> Any:
    def map_in_context(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(self, _with_context(func) if _is_needed() else func, *args, **kwargs)

    return map_in_context


def _with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    context = copy_context()

    def in_context(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(function, *args, **kwargs)  # a copy, because several threads may run this at once

    return in_context


def _run_in_context(thread: Thread, context: Context) -> None:
    """Make the next run of `thread` use `context`, and leave nothing on the object afterwards."""
    run = thread.run

    def run_in_context() -> None:
        vars(thread).pop("run", None)
        context.run(run)

    vars(thread)["run"] = run_in_context
