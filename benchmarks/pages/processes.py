"""The processes that the benchmark of the console measures: the console, and browsers."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, sync_playwright
from websockets.sync.client import connect

BYTES = 1 << 20
BROWSER_SECONDS = 60
"""Longest time until a browser has started."""


class Served:
    """A console in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self.process, self.address = process, address

    def mib(self) -> float:
        """Return the memory that the process holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / BYTES

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(runs: Path) -> Generator[Served]:
    """Context manager: a console of the runs in a folder."""
    command = [sys.executable, "-m", "leyden.core.cli", "console", "--runs", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None, "the console did not start"
            yield Served(process, found.group().rstrip("/"))
        finally:
            process.terminate()


@contextmanager
def opened(chromium: str) -> Generator[Browser]:
    """Context manager: a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window_of_tabs(chromium: str, profile: Path) -> Generator[str]:
    """Context manager: a browser whose tabs share a window, unlike Playwright's; gives its DevTools address."""
    command = [chromium, "--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-port=0"]
    port = profile / "DevToolsActivePort"
    with subprocess.Popen([*command, f"--user-data-dir={profile}"], stderr=subprocess.DEVNULL) as process:
        try:
            ends = time.monotonic() + BROWSER_SECONDS
            while not port.exists() or not port.read_text():
                if process.poll() is not None or time.monotonic() > ends:
                    raise RuntimeError(f"{chromium} did not start")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json"
        finally:
            process.terminate()


@contextmanager
def tabs_of(window: str, addresses: list[str]) -> Generator[None]:
    """Context manager: a tab for each address, of which the last is visible."""
    tabs: list[dict[str, str]] = []
    for address in addresses:
        with urlopen(Request(f"{window}/new?{quote(address, safe='')}", method="PUT")) as answer:
            tabs.append(json.load(answer))
    time.sleep(1)
    shown = [evaluated(tab["webSocketDebuggerUrl"], "document.visibilityState") for tab in tabs]
    if shown.count("visible") != 1:
        raise RuntimeError(f"one of the tabs is to be visible, but they are {shown}")
    yield
    for tab in tabs:
        urlopen(f"{window}/close/{tab['id']}").close()


def evaluated(socket: str, expression: str) -> Any:
    """Return the value of a JavaScript expression in a tab."""
    with connect(socket) as connection:
        call = {"id": 1, "method": "Runtime.evaluate", "params": {"expression": expression}}
        connection.send(json.dumps(call))
        return json.loads(connection.recv())["result"]["result"]["value"]
