"""Chromium, and a console that is served as a user serves it."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
Serve = Callable[..., str]
ADDRESS = re.compile(r"http://\S+")


@pytest.fixture
def browser() -> Generator[Browser]:
    """The machine's own Chromium; skips the test where there is none, unless the clients are required."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        missing = "no Chromium on this machine: apt-get install chromium"
        assert os.environ.get("LEYDEN_CLIENTS") != "required", missing
        pytest.skip(missing)
    # Chromium leaves files behind; the folder's path is short, as that of a socket in it has a limit.
    with tempfile.TemporaryDirectory(prefix="c", ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, "TMPDIR": folder}
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], env=environment)
        yield browser
        browser.close()


@contextmanager
def served(*arguments: str, folder: Path = ROOT) -> Generator[str]:
    """Serve `leyden console ARGUMENTS` on a free port, from a folder; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "leyden.core.cli", "console", *arguments, "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = ADDRESS.search(line)
            assert found is not None, line + process.stdout.read()
            yield found.group().rstrip("/")
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture
def serve() -> Generator[Serve]:
    """Serve a console, and stop it at the end of the test; gives its address."""
    stack: list[Generator[str] | object] = []

    def start(*arguments: str, folder: Path = ROOT) -> str:
        manager = served(*arguments, folder=folder)
        stack.append(manager)
        return manager.__enter__()

    yield start
    for manager in stack:
        manager.__exit__(None, None, None)  # type: ignore[attr-defined]
