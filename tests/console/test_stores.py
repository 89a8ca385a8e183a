"""The console on stores of every kind, in a real browser: every view, and a server that goes away and comes back."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser_tour import tour
from playwright.sync_api import Browser, Page
from stored_runs import NAMES, record_runs

from leyden.core.testing.servers import postgres_server
from leyden.core.testing.servers.ports import free_port
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

KINDS = ("sqlite", "postgresql", "redis", "http")
SECRET = "a-token-that-no-page-shows"
VIEWS = (
    "runs",
    "run",
    "rollouts",
    "rollout",
    "pair",
    "call",
    "versions",
    "prompts",
    "health",
    "bottlenecks",
    "compare",
)
FOLDER = ("rollouts", "chat", "prompts", "reward", "try", "bottlenecks")
"""Views that show something which only the run's folder has."""
PASSWORDS = (postgres_server.PASSWORD, postgres_server.QUOTED, SECRET)


class Source:
    """A store of one kind, whose server can be stopped and started again."""

    def __init__(self, uri: str, stop: Callable[[], None], start: Callable[[], None]) -> None:
        self.uri, self.stop, self.start = uri, stop, start


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Source]:
    """A store with two runs."""
    with ExitStack() as stack:
        made = stack.enter_context(MAKERS[request.param](tmp_path))
        record_runs(made.uri, tmp_path / "folders")
        yield made


@contextmanager
def of_sqlite(place: Path) -> Generator[Source]:
    file, away = place / "shared.db", place / "away.db"
    yield Source(f"sqlite:///{file}", lambda: _moved(file, away), lambda: _moved(away, file))


@contextmanager
def of_postgresql(place: Path) -> Generator[Source]:
    del place
    if (reason := postgres_server.missing()) is not None:
        pytest.skip(reason)
    with PostgresServer() as server:
        yield Source(server.uri_of(server.create()), server.stop, server.start)


@contextmanager
def of_redis(place: Path) -> Generator[Source]:
    del place
    if PROGRAM is None:
        pytest.skip(NO_REDIS)
    with RedisServer(has_port=True) as server:
        yield Source(server.tcp_uri(options="?namespace=runs"), server.stop, server.start)


@contextmanager
def of_http(place: Path) -> Generator[Source]:
    """A server of `leyden store`, as a user starts it."""
    port = free_port()
    command = [sys.executable, "-m", "leyden.core.cli", "store", "--uri", f"sqlite:///{place}/served.db"]
    servers: list[subprocess.Popen[str]] = []

    def start() -> None:
        environment = {**os.environ, "LEYDEN_STORE_TOKEN": SECRET}
        servers.append(
            subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=subprocess.PIPE, text=True)
        )
        assert servers[-1].stdout is not None
        assert servers[-1].stdout.readline()

    def stop() -> None:
        with servers.pop() as server:
            server.terminate()
            server.wait(30)

    start()
    try:
        yield Source(f"http://{SECRET}@127.0.0.1:{port}", stop, start)
    finally:
        while servers:
            stop()


MAKERS = {"sqlite": of_sqlite, "postgresql": of_postgresql, "redis": of_redis, "http": of_http}


def _moved(file: Path, to: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        if (part := file.with_name(file.name + ending)).exists():
            part.rename(to.with_name(to.name + ending))


def test_every_view_opens_on_every_kind_of_store(browser: Browser, serve: Any, source: Source) -> None:
    texts: dict[str, str] = {}

    def read(page: Page, name: str) -> None:
        page.wait_for_timeout(400)  # parts of a page are requested one after the other
        page.wait_for_function("() => !document.querySelector('main [aria-busy]')")
        texts[name] = page.locator("main").inner_text()

    problems = tour(browser.new_page(), serve(source.uri), NAMES[0], read)

    assert problems == []
    assert set(VIEWS) <= set(texts)
    assert not [name for name, text in texts.items() if "Traceback" in text]
    assert not [name for name, text in texts.items() if any(word in text for word in PASSWORDS)]
    assert [name for name in FOLDER if "folder" not in texts[name]] == [], texts
    assert "0.50" in texts["runs"] or "0.5" in texts["runs"]
    assert "It is 2." in texts["call"]


def test_a_store_that_goes_away_is_named_and_read_again_when_it_is_back(
    browser: Browser, serve: Any, source: Source
) -> None:
    address = serve(source.uri)
    of_list, of_run = browser.new_page(), browser.new_page()
    of_list.goto(f"{address}/#/runs")
    of_run.goto(f"{address}/#/runs/{NAMES[0]}")
    for page in (of_list, of_run):
        page.wait_for_selector(f"main >> text={NAMES[0]}")
    of_run.wait_for_selector("main .charts canvas")
    if source.uri.startswith("sqlite"):
        return  # a file that is open stays open

    source.stop()
    line = of_list.wait_for_selector("main .notice.warn", timeout=60_000)
    trouble = of_run.wait_for_selector("main .trouble .problem", timeout=60_000)
    assert line is not None and trouble is not None
    for text in (line.inner_text(), trouble.inner_text()):
        assert "\n" not in text.strip()
        assert not any(word in text for word in PASSWORDS)
    assert of_list.locator(f"main >> text={NAMES[0]}").count() > 0

    source.start()
    of_list.wait_for_selector("main .notice.warn", state="detached", timeout=60_000)
    of_run.wait_for_selector("main .trouble .problem", state="detached", timeout=60_000)


@pytest.mark.parametrize("kind", ["password", "port", "host", "token"])
def test_a_store_that_cannot_be_opened_is_one_line_beside_the_others(
    browser: Browser, serve: Any, tmp_path: Path, small_run: Path, kind: str
) -> None:
    with ExitStack() as stack:
        wrong = wrong_uri(kind, tmp_path, stack)
        page = browser.new_page()
        page.goto(serve(str(small_run.parent), wrong))
        page.wait_for_selector("main >> text=small", timeout=10_000)
        line = page.wait_for_selector("main .notice.warn", timeout=10_000)
        page.wait_for_function(
            "() => !/no complete answer/.test(document.querySelector('main .notice').textContent)", timeout=40_000
        )
        assert line is not None
        text = page.locator("main .notice.warn").inner_text()
    assert re.match(r"(postgresql|http|redis)://(\*\*\*@)?", text), text
    assert "wrong-secret" not in page.content()
    assert EXPECTED[kind] in text, text


EXPECTED = {
    "password": "the user or the password is wrong",
    "port": "no server listens there",
    "host": "there is no such host",
    "token": "token",
}


def wrong_uri(kind: str, place: Path, stack: ExitStack) -> str:
    """The URI of a store that cannot be opened, for a reason."""
    if kind == "port":
        return f"postgresql://someone:wrong-secret@127.0.0.1:{free_port()}/runs"
    if kind == "host":
        return "postgresql://someone:wrong-secret@no-such-host.invalid/runs"
    if kind == "token":
        right = stack.enter_context(of_http(place)).uri
        return right.replace(SECRET, "wrong-secret")
    if (reason := postgres_server.missing()) is not None:
        pytest.skip(reason)
    server = stack.enter_context(PostgresServer())
    return server.uri_of("postgres").replace(postgres_server.QUOTED, "wrong-secret")
