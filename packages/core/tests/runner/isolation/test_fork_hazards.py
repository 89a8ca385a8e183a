"""What the import of an agent leaves behind that a fork must not share; looked at in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

BEGIN = """
import os, socket, sys, threading
from pathlib import Path
from leyden.core.runner.isolation import code_reading
from leyden.core.runner.isolation.fork_hazards import ForkHazards
folder = Path(sys.argv[1])
"""


def printed(folder: Path, script: str) -> list[str]:
    """The lines that the script prints."""
    command = [sys.executable, "-c", BEGIN + script, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_thread_is_found_until_it_ends(tmp_path: Path) -> None:
    script = """
hazards, go_on = ForkHazards(), threading.Event()
thread = threading.Thread(target=go_on.wait, name="of the agent")
thread.start()
print(hazards.found())
go_on.set()
thread.join()
print(hazards.found())
"""
    assert printed(tmp_path, script) == ["['1 thread (of the agent)']", "[]"]


def test_a_thread_that_python_did_not_start_is_found_until_it_ends(tmp_path: Path) -> None:
    """Python keeps such a thread in its list for good, once code in it has asked for its own thread."""
    script = """
import _thread, time
hazards, go_on, known = ForkHazards(), threading.Event(), threading.Event()

def work():
    threading.current_thread().name = "of a library"
    known.set()
    go_on.wait()

number = _thread.start_new_thread(work, ())
known.wait()
print(hazards.found())
go_on.set()
while number in sys._current_frames():
    time.sleep(0.01)
print(any(thread.name == "of a library" for thread in threading.enumerate()), hazards.found())
"""
    assert printed(tmp_path, script) == ["['1 thread (of a library)']", "True []"]


def test_connections_and_files_that_are_written_to_are_found(tmp_path: Path) -> None:
    (tmp_path / "read").write_text("")
    script = """
hazards = ForkHazards()
with (folder / "read").open(), (folder / "log").open("a"), Path(os.devnull).open("w"):
    print(hazards.found())
ours, theirs = socket.socketpair()
with ours, theirs, (folder / "table").open("w"):
    print(*sorted(hazards.found()), sep="; ")
print(hazards.found())
"""
    assert printed(tmp_path, script) == ["[]", f"{tmp_path}/table, open for writing; an open connection", "[]"]


@pytest.mark.parametrize("of_a_library", [True, False])
def test_what_the_import_of_a_library_opens_does_not_count(tmp_path: Path, of_a_library: bool) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "hazards_library.py").write_text("import socket\nleft = socket.socketpair()\n")
    (tmp_path / "hazards_agent.py").write_text("import hazards_library\n")
    script = f"""
libraries = (f"{{folder}}/libraries/",) if {of_a_library} else ()
code_reading._library_folders = lambda: (f"{{sys.base_prefix}}/", *libraries)
sys.path[:0] = [str(folder), f"{{folder}}/libraries"]
hazards = ForkHazards()
with hazards.watching():
    import hazards_agent
print(hazards.found())
"""
    assert printed(tmp_path, script) == ["[]" if of_a_library else "['an open connection']"]


def test_the_thread_that_watches_progress_bars_does_not_count(tmp_path: Path) -> None:
    """Nothing waits for it. Many libraries show a progress bar while an agent builds an index at its import."""
    script = """
from tqdm import tqdm
hazards, go_on = ForkHazards(), threading.Event()
list(tqdm(range(2), disable=False, file=(folder / "bars").open("a")))
print([thread.name for thread in threading.enumerate()][1:], hazards.found())
thread = threading.Thread(target=go_on.wait, name="of the agent")
thread.start()
print(hazards.found())
go_on.set()
"""
    assert printed(tmp_path, script) == ["['tqdm_monitor'] []", "['1 thread (of the agent)']"]
