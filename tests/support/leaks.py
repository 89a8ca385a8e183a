"""A pytest plugin that fails the file which leaves something behind, and says what.

Without it a leak is charged to whatever test runs when Python's garbage collector happens to come by. At the end of
each file, after its fixtures, the collector runs; what is left of the file's threads, processes, descriptors, temporary
files, event loops and modules, and settings that are not as they were, fail the file's last test. What a session's
fixture makes stays, for it belongs to the session.
"""

import gc
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from settings import changed, settings
from traces import TEMPORARY, WORKER, Picture, alive, end_processes

PATIENCE_SECONDS = 20.0
"""How long a thread or a process may take to end that was told to, on a machine that is busy with other work."""
LOOK_AGAIN_SECONDS = 0.02


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that tests of this plugin use."""
    parser.addoption(
        "--leak-patience", type=float, default=PATIENCE_SECONDS, help="seconds for what ends by itself after a file"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin, in the processes that run tests."""
    config.addinivalue_line(
        "markers",
        "keeps(kind, because): a library that this file uses keeps things of this kind for the process's life, and has "
        "no way to end them; kinds are thread, process, descriptor, file, loop and module",
    )
    is_controller = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
    if not is_controller and not config.option.collectonly:
        config.pluginmanager.register(Leaks(config.option.leak_patience), "leaks of files")


def kept_by(item: pytest.Item) -> set[str]:
    """Return the kinds of things that a library may keep which this test's file uses."""
    return {marker.args[0] for marker in item.iter_markers("keeps")}


def start_what_stays() -> None:
    """Start what a library makes once in a process, at its first use."""
    with suppress(ImportError):  # Windows
        import uvloop

        uvloop.new_event_loop().close()  # libuv's pipe for signals
    if "crewai.events.event_bus" in sys.modules:
        from crewai.events.base_events import BaseEvent
        from crewai.events.event_bus import crewai_event_bus

        with crewai_event_bus.scoped_handlers():  # the first event that is handled starts the bus's threads and loop
            crewai_event_bus.on(BaseEvent)(_ignore)
            crewai_event_bus.emit(None, BaseEvent(type="tests_begin"))
            crewai_event_bus.flush()


def _ignore(source: Any, event: Any) -> None:
    """Handle an event by doing nothing."""


class Leaks:
    """What is there that no file is to blame for, and what has come since."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._known: Picture = {}
        self._settings: Mapping[str, object] = {}
        self._before = {name: os.environ.get(name) for name in ("TMPDIR", WORKER, TEMPORARY)}
        os.environ.setdefault(TEMPORARY, tempfile.gettempdir())
        multiprocessing.util.get_temp_dir()  # a process has one to its end
        self._folder = Path(tempfile.mkdtemp(prefix="lt-"))  # a short name: it begins the names of Unix sockets
        self._folder.chmod(0o755)  # PostgreSQL may run as another user
        os.environ["TMPDIR"], tempfile.tempdir = str(self._folder), None
        os.environ[WORKER] = uuid.uuid4().hex
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell starts what it runs in the background like that, and every child would ignore Ctrl-C, too.
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Put the environment back, and take the temporary folder away."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None
        shutil.rmtree(self._folder, ignore_errors=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Take what is there before the first test for granted.

        Python's collector rests meanwhile: it would look at millions of objects of imports, and none of them ends.
        """
        gc.disable()
        try:
            result = yield
        finally:
            gc.enable()
        start_what_stays()
        self._settle()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: "pytest.FixtureDef[Any]") -> Generator[None, object, object]:
        """Take what a session's fixture makes for granted from here on."""
        if fixturedef.scope not in ("session", "package"):
            return (yield)
        things, set_before = alive(), settings()
        try:
            return (yield)
        finally:
            self._known |= {key: words for key, words in alive().items() if key not in things}
            now = settings()
            self._settings = {
                **self._settings,
                **{name: now[name] for name in now if now[name] != set_before.get(name)},
            }

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Look, once the last test of a file and its fixtures are done."""
        is_last = nextitem is None or nextitem.path != item.path
        try:
            result = yield
        except BaseException:
            if is_last:
                self._settle()  # it fails anyway, and the next file is not to blame for what it leaves
            raise
        left = self._left(kept_by(item)) if is_last else []
        if left:
            file = item.nodeid.partition("::")[0]
            pytest.fail("\n  ".join([f"{file} leaves behind:", *left]), pytrace=False)
        return result

    def _left(self, kept: set[str]) -> list[str]:
        """Say what is left, and take it for granted from here on."""
        unraisable: list[str] = []
        hook = sys.unraisablehook
        sys.unraisablehook = lambda found: unraisable.append(f"{found.exc_value!r} (in {found.object!r})")
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook
        there, left = self._there_for_good(kept)
        end_processes(left)
        set_now = settings()
        said = [*left.values(), *changed(self._settings, set_now), *unraisable]
        if said:
            self._settle()
        else:
            self._take_for_granted(there, set_now)
        return said

    def _there_for_good(self, kept: set[str]) -> tuple[Picture, Picture]:
        """What is there when all that ends by itself has had its time, and what of it the file leaves."""
        give_up = time.monotonic() + self._patience
        while True:
            was_last = time.monotonic() > give_up
            there = alive()
            left = {key: words for key, words in there.items() if key not in self._known and key[0] not in kept}
            if not left or was_last:
                return there, left
            time.sleep(LOOK_AGAIN_SECONDS)

    def _settle(self) -> None:
        """Take what is there now for granted."""
        gc.collect()
        self._take_for_granted(alive(), settings())

    def _take_for_granted(self, there: Picture, set_now: Mapping[str, object]) -> None:
        """Remember what was just seen, after a collection, and spare the collector from looking at it again."""
        gc.freeze()
        self._known, self._settings = there, set_now
