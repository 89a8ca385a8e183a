"""A run's folder that was copied and renamed opens anywhere; its agent, tasks and policy are not on this machine."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from browser_tour import tour
from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

VIEWS = ("runs", "run", "rollouts", "groups", "rollout", "pair", "call", "step", "versions", "prompts", "health")


@pytest.fixture
def copied(small_run: Path, tmp_path: Path) -> Path:
    """A copy of a run under another name."""
    folder = tmp_path / "from another machine/renamed"
    shutil.copytree(small_run, folder)
    return folder


@pytest.fixture
def other_folder(tmp_path: Path) -> Path:
    """An empty folder, in which the paths of the run's configuration lead to nothing."""
    folder = tmp_path / "other_folder"
    folder.mkdir()
    return folder


def test_every_view_of_a_copied_run_opens(browser: Browser, serve: Any, copied: Path, other_folder: Path) -> None:
    texts: dict[str, str] = {}

    def read(page: Page, name: str) -> None:
        page.wait_for_timeout(400)  # parts of a page are requested one after the other
        page.wait_for_function("() => !document.querySelector('main [aria-busy]')")
        texts[name] = page.locator("main").inner_text()

    problems = tour(browser.new_page(), serve(str(copied.parent), folder=other_folder), "renamed", read)

    assert problems == []
    assert set(VIEWS) <= set(texts)
    assert not [name for name, text in texts.items() if "Traceback" in text]
    assert "step 3 of 3" in texts["run"]
    assert "leyden models show renamed:" in texts["versions"]
    assert f"there is no file {other_folder}/examples/calculator_langgraph/reward.py" in texts["reward"]


def test_a_command_that_needs_the_agent_says_which_file_is_missing(
    browser: Browser, serve: Any, copied: Path, other_folder: Path
) -> None:
    address = serve(str(copied.parent), "--allow-actions", folder=other_folder)
    page = browser.new_page()
    page.goto(address)
    page.evaluate("() => { location.hash = '#/runs/renamed/try' }")
    page.get_by_role("button", name="Find the prompts").click()
    page.wait_for_selector("main >> text=examples/calculator_langgraph", timeout=60_000)
    page.wait_for_function("() => /failed/.test(document.querySelector('main').textContent)", timeout=60_000)

    text = page.locator("main").inner_text()
    assert "agent.py" in text
    assert "Traceback" not in text


def test_the_folder_in_which_the_console_is_started_can_be_the_run(browser: Browser, serve: Any, copied: Path) -> None:
    page = browser.new_page()
    page.goto(serve(".", folder=copied))
    page.click("main tbody a")
    page.wait_for_selector("main .tabs")
    assert page.evaluate("location.hash").startswith("#/runs/renamed")
