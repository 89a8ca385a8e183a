"""A pytest plugin: the level of each test, and a failure where a unit test is none.

The levels are markers. `unit` tests start no process and no server; `integration` tests start some, one server a file
where that is possible; `e2e` tests run commands, examples or whole trainings; `long` tests take a minute or so; `gpu`
tests need a GPU, and are collected only with `-m gpu`. A test that is named in the table `levels.toml` has that level;
then a marker on the test or in its file's `pytestmark` wins, then what the table says of its file or folder. What is in
neither is a unit test. No marker may win over `long` in the table: such a file is not imported where no long test is
wanted.
"""

import multiprocessing.process
import socket
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

LEVELS = ("unit", "integration", "e2e", "long", "gpu")
TABLE = Path(__file__).with_name("levels.toml")
STARTS = {
    "subprocess.Popen": "the process {0}",
    "os.posix_spawn": "the process {0}",
    "os.fork": "a fork of the test's process",
    "os.forkpty": "a fork of the test's process",
}
"""Events of Python's audit hooks that a unit test may not raise, and what they start, in terms of their arguments."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known, and watch what tests start."""
    for level in (*LEVELS[:3], "gpu"):
        config.addinivalue_line("markers", f"{level}: a level of tests, see tests/support/levels.py")
    config.pluginmanager.register(Levels(config.rootpath), "levels of tests")


def is_being_imported() -> bool:
    """Whether a module is being imported: matplotlib, for one, lists a new machine's fonts by a process then."""
    frame: FrameType | None = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class Levels:
    """Gives every test its level, and watches the unit tests."""

    def __init__(self, root: Path) -> None:
        self._root = root
        with TABLE.open("rb") as file:
            table: dict[str, list[str]] = tomllib.load(file)
        self._table = {path: level for level, paths in table.items() for path in paths}
        self._started: list[str] = []
        self._starting_fixtures: dict[tuple[str, str], str] = {}
        """What fixtures of more than one test have started, by their names and the folder or file that they are for."""
        self._watch()

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Do not even import files of which no test is wanted: by their level, where no marker may win over it."""
        wanted, level = config.option.markexpr, self._of_path(collection_path)
        if level == "gpu":
            return wanted != "gpu" or None
        unwanted = level not in (None, "unit") if wanted == "unit" else wanted == "not long" and level == "long"
        return True if unwanted else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Add the marker of its level to each test that has none."""
        for item in items:
            if level := self._of_test(item):
                item.add_marker(level)
            elif not any(item.get_closest_marker(level) for level in LEVELS):
                item.add_marker(self._of_path(item.path) or "unit")
            elif self._of_path(item.path) == "long" and not item.get_closest_marker("long"):
                raise pytest.UsageError(f"{item.nodeid} would never run: {TABLE.name} says that its file is long")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: "pytest.FixtureDef[Any]") -> Generator[None, object, object]:
        """Remember what a shared fixture starts: it may be set up before, for another test."""
        before = len(self._started)
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function" and len(self._started) > before:
                self._starting_fixtures[fixturedef.argname, fixturedef.baseid] = self._started[before]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Begin anew."""
        self._started.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a unit test that passes, but has started something."""
        result = yield
        started = [*self._started, *self._by_fixtures(item)]
        if started and item.get_closest_marker("unit"):
            pytest.fail(
                f"{item.nodeid} is a unit test and started {started[0]}. Mark it with @pytest.mark.integration (or its "
                "file: pytestmark = pytest.mark.integration), or name its file in tests/support/levels.toml.",
                pytrace=False,
            )
        return result

    def _by_fixtures(self, item: pytest.Item) -> list[str]:
        used: list[str] = getattr(item, "fixturenames", [])
        return [
            f"{what} (fixture {name})"
            for (name, base), what in self._starting_fixtures.items()
            if name in used and item.nodeid.startswith(base)
        ]

    def _of_test(self, item: pytest.Item) -> str | None:
        """The level of a test that the table names, with its parameters or for all of them."""
        return self._table.get(item.nodeid) or self._table.get(item.nodeid.partition("[")[0])

    def _of_path(self, path: Path) -> str | None:
        try:
            parts = path.relative_to(self._root).as_posix()
        except ValueError:  # a test of tests, in a temporary folder
            return None
        folders = [f"{folder}/" for folder in Path(parts).parents]
        return next((self._table[place] for place in (parts, *folders) if place in self._table), None)

    def _watch(self) -> None:
        """Note each start, in all that pytest does from here on: an audit hook cannot be taken away."""
        sys.addaudithook(self._noticed)
        started = self._started
        start, listen = multiprocessing.process.BaseProcess.start, socket.socket.listen

        def noted_start(self: multiprocessing.process.BaseProcess) -> None:
            started.append(f"the process {self.name}")
            start(self)

        def noted_listen(self: socket.socket, *backlog: int) -> None:
            started.append(f"a server at {self.getsockname()}")
            listen(self, *backlog)

        multiprocessing.process.BaseProcess.start = noted_start
        socket.socket.listen = noted_listen  # there is no audit event

    def _noticed(
        self,
        event: str,
        arguments: tuple[Any, ...],
        starts: Mapping[str, str] = STARTS,
        being_imported: Callable[[], bool] = is_being_imported,
    ) -> None:
        if event in starts and not being_imported():  # the module's own name is gone when Python ends
            self._started.append(starts[event].format(*arguments))
