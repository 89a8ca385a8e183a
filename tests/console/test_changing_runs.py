"""Pages while their console is away, or while their run is replaced or deleted."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser_page import new_page
from console_runs import made_run
from playwright.sync_api import Browser, Locator, Page, expect

from leyden.core.errors import RunError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

NO_ANSWER = "The console's server does not answer. Is `leyden console` still running?"


@pytest.fixture
def port() -> int:
    """A port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def served_at(port: int, *arguments: str) -> Generator[str]:
    """Serve `leyden console ARGUMENTS` on this port; gives the address that it prints."""
    command = [sys.executable, "-m", "leyden.core.cli", "console", *arguments, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield found.group()
        finally:
            process.terminate()
            process.wait(20)


def open_run(page: Page, address: str) -> None:
    page.goto(f"{address}#/runs/small")
    expect(page.get_by_text("step 2 of 2")).to_be_visible()


def trouble(page: Page) -> Locator:
    """What the page says is wrong."""
    return page.locator("main .problem").filter(visible=True)


@pytest.mark.parametrize("where", ["runs", "runs/small", "runs/small/health", "studies"])
def test_a_page_says_that_the_console_is_away_until_it_is_back(
    browser: Browser, tmp_path: Path, port: int, where: str
) -> None:
    folder = made_run(tmp_path, finished=False)
    page, errors = new_page(browser, messages=False)
    with folder.locked():
        with served_at(port, str(tmp_path)) as address:
            page.goto(f"{address}#/{where}")
            page.wait_for_timeout(1000)
            expect(trouble(page)).to_have_count(0)
        expect(trouble(page)).to_have_text(NO_ANSWER, timeout=15_000)
        page.wait_for_timeout(6000)
        expect(trouble(page)).to_have_text(NO_ANSWER)
        with served_at(port, str(tmp_path)):
            expect(trouble(page)).to_have_count(0, timeout=20_000)
    assert errors == []


def test_what_was_loading_when_the_console_went_away_is_drawn_when_it_is_back(
    browser: Browser, tmp_path: Path, port: int
) -> None:
    made_run(tmp_path)
    page, errors = new_page(browser, messages=False)
    page.route("**/steps*", lambda route: route.abort())
    retry = page.get_by_role("button", name="Try again")
    with served_at(port, str(tmp_path)) as address:
        page.goto(f"{address}#/runs/small")
        expect(retry).to_be_visible()
        page.unroute("**/steps*")
    expect(retry).to_be_hidden(timeout=15_000)
    expect(trouble(page)).to_have_text(NO_ANSWER)
    with served_at(port, str(tmp_path)):
        expect(trouble(page)).to_have_count(0, timeout=20_000)
        expect(page.get_by_role("heading", name="Reward", exact=True)).to_be_visible()
    assert errors == []


def test_a_page_says_that_the_token_has_changed_until_it_has_the_new_one(
    browser: Browser, tmp_path: Path, port: int
) -> None:
    made_run(tmp_path)
    page, errors = new_page(browser, messages=False)
    with served_at(port, str(tmp_path)) as address:
        open_run(page, address)
    with served_at(port, str(tmp_path), "--allow-actions") as address:
        expect(trouble(page)).to_contain_text("token is missing or has changed", timeout=20_000)
        page.context.request.get(address)  # as another tab does: it has the same cookies
        expect(trouble(page)).to_have_count(0, timeout=20_000)
    assert errors == []


def test_a_tab_that_was_first_clicked_without_the_console_opens_when_it_is_back(
    browser: Browser, tmp_path: Path, port: int
) -> None:
    made_run(tmp_path)
    page, errors = new_page(browser, messages=False)
    with served_at(port, str(tmp_path)) as address:
        open_run(page, address)
    page.get_by_role("link", name="Health").click()
    expect(trouble(page)).to_contain_text(NO_ANSWER)
    page.get_by_role("button", name="Try again").click()
    expect(trouble(page)).to_contain_text(NO_ANSWER)
    with served_at(port, str(tmp_path)):
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("heading", name="Is it alive?")).to_be_visible()
    assert errors == []


def test_an_open_page_shows_the_run_that_took_the_place_of_its_own(
    browser: Browser, serve: Any, tmp_path: Path
) -> None:
    folder = made_run(tmp_path)
    page, errors = new_page(browser, messages=False)
    page.goto(f"{serve(str(tmp_path))}/#/runs/small")
    expect(page.get_by_text("step 2 of 2")).to_be_visible()

    folder.note_failure(RunError("the check failed"))
    RunFolder.create(tmp_path, RunConfig(name="small", agent="agent.py:agent", policy="policy", steps=9), [], {})

    expect(page.get_by_text("step 0 of 9")).to_be_visible(timeout=10_000)
    expect(trouble(page)).to_have_count(0)
    assert errors == []


def test_a_run_that_is_deleted_is_said_to_be_gone_once(browser: Browser, serve: Any, tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    page, errors = new_page(browser, messages=False)
    page.goto(f"{serve(str(tmp_path))}/#/runs/small/health")
    expect(page.get_by_role("heading", name="Is it alive?")).to_be_visible()

    shutil.rmtree(folder.path)

    expect(trouble(page)).to_have_text(f"the run was moved or deleted: {folder.path}", timeout=10_000)
    page.wait_for_timeout(6000)
    expect(trouble(page)).to_have_count(1)
    assert errors == []


def test_a_damaged_file_is_named_above_what_can_be_read(browser: Browser, serve: Any, tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    (folder.path / "versions.jsonl").write_text("{broken\n")
    page, errors = new_page(browser, messages=False)
    page.goto(f"{serve(str(tmp_path))}/#/runs/small")

    expect(trouble(page)).to_contain_text(f"{folder.path}/versions.jsonl, line 1 cannot be read")
    expect(page.get_by_role("heading", name="Summary")).to_be_visible()
    page.goto(page.url + "/health")
    expect(page.get_by_role("heading", name="Is it alive?")).to_be_visible()
    expect(trouble(page)).to_have_count(0)
    assert errors == []
