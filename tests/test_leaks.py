"""The plugin that fails a file for what it leaves behind, on files that leave one thing each."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

SUPPORT = Path(__file__).with_name("support")
LEFT, ORPHAN = f"time.sleep(600.{os.getpid()})", f"time.sleep(601.{os.getpid()})"
LEAVES = {
    "thread": (
        """
        import threading

        waiting = threading.Event()

        def test_leaves() -> None:
            threading.Thread(target=waiting.wait, name="forgotten", daemon=True).start()
        """,
        "thread 'forgotten' (threading.Event.wait)",
    ),
    "process": (
        f"""
        import subprocess, sys

        def test_leaves() -> None:
            global child
            child = subprocess.Popen([sys.executable, "-c", "import time; {LEFT}"])
        """,
        LEFT,
    ),
    "orphan": (
        f"""
        import subprocess, sys

        def test_leaves() -> None:
            code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; {ORPHAN}'])"
            subprocess.run([sys.executable, "-c", code], check=True)
        """,
        ORPHAN,
    ),
    "socket": (
        """
        import socket

        def test_leaves() -> None:
            global server
            server = socket.create_server(("127.0.0.1", 0))
        """,
        "socket ('127.0.0.1', ",
    ),
    "loop": (
        """
        import asyncio

        def test_leaves() -> None:
            global loop
            loop = asyncio.new_event_loop()
        """,
        "open event loop",
    ),
    "lost_loop": (
        """
        import asyncio

        class Cycle: pass

        def test_leaves() -> None:
            cycle = Cycle()
            cycle.itself, cycle.loop = cycle, asyncio.new_event_loop()
        """,
        "unclosed event loop",
    ),
    "temporary_folder": (
        """
        import tempfile

        def test_leaves() -> None:
            tempfile.mkdtemp(prefix="left-")
        """,
        "temporary file ",
    ),
    "environment": (
        """
        import os

        def test_leaves() -> None:
            os.environ["LEFT"] = "here"
        """,
        "os.environ['LEFT'] is 'here', was not there",
    ),
    "path": (
        """
        import sys

        def test_leaves() -> None:
            sys.path.insert(0, "/nowhere")
        """,
        "sys.path",
    ),
    "module": (
        """
        import importlib.util, sys

        def test_leaves(tmp_path) -> None:
            (tmp_path / "agent.py").write_text("")
            spec = importlib.util.spec_from_file_location("loaded_agent", tmp_path / "agent.py")
            sys.modules["loaded_agent"] = importlib.util.module_from_spec(spec)
        """,
        "module loaded_agent of",
    ),
    "handler": (
        """
        import signal

        def test_leaves() -> None:
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        """,
        "handler of SIGTERM",
    ),
    "logger": (
        """
        import logging

        def test_leaves() -> None:
            logging.getLogger("leyden.left").addHandler(logging.NullHandler())
        """,
        "logger leyden.left is (0, (<NullHandler",
    ),
    "patch": (
        """
        import threading

        def test_leaves() -> None:
            threading.Thread.start = lambda thread: None
        """,
        "threading.Thread.start",
    ),
}
INNOCENT = """
import _thread, asyncio, gc, subprocess, sys, threading, time
import pytest

@pytest.fixture(scope="session")
def server():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(602)"])
    yield child
    child.kill()
    child.wait()

def test_of_a_session(server) -> None:
    assert server.poll() is None

def test_ends_late() -> None:
    threading.Timer(0.2, lambda: None).start()

def test_closes() -> None:
    asyncio.run(asyncio.sleep(0))

def test_a_thread_that_python_did_not_start_ends() -> None:
    known = threading.Event()
    number = _thread.start_new_thread(lambda: known.set() or threading.current_thread(), ())
    known.wait()
    while number in sys._current_frames():
        time.sleep(0.01)
    assert any(isinstance(thread, threading._DummyThread) for thread in threading.enumerate())
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints of a file for each leak, and one between any two of them that leaves nothing."""
    folder = tmp_path_factory.mktemp("leaky")
    for number, (name, (code, _)) in enumerate(LEAVES.items()):
        (folder / f"test_{number:02d}_{name}.py").write_text(textwrap.dedent(code))
        (folder / f"test_{number:02d}_{name}_then_innocent.py").write_text(INNOCENT)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-c", "/dev/null", "--rootdir", str(folder)]
    options = ["-p", "no:cacheprovider", "-p", "leaks", "--leak-patience", "2", "-W", "error", str(folder)]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # for other plugins
    environment = {**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", LEAVES)
def test_what_a_file_leaves_fails_that_file_and_names_the_thing(outcome: str, name: str) -> None:
    number = list(LEAVES).index(name)
    assert f"ERROR test_{number:02d}_{name}.py::test_leaves" in outcome
    _, _, said = outcome.partition(f"test_{number:02d}_{name}.py leaves behind:")
    assert LEAVES[name][1] in said.partition("leaves behind:")[0], said[:500]


def test_no_other_file_fails(outcome: str) -> None:
    assert outcome.count("ERROR test_") == len(LEAVES)
    assert "FAILED" not in outcome
    assert f"{5 * len(LEAVES)} passed, {len(LEAVES)} errors" in outcome, outcome[-2000:]


def test_processes_that_a_file_leaves_are_ended(outcome: str) -> None:
    assert outcome
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if any(words in line for words in (LEFT, ORPHAN))]
