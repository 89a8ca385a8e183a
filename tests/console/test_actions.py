"""Actions of the console in a real browser, on real runs: launch, stop, continue, promote, search for settings."""

import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from accessibility import violations_everywhere
from browser_page import new_page
from playwright.sync_api import Browser, Page, expect

from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_lock import lock_holder

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MINUTES = 180_000


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Generator[Path]:
    """A finished run that may be changed. What trains in its folder at the end of the test is ended."""
    yield Path(shutil.copytree(small_run, tmp_path / "runs" / small_run.name))
    for lock in (tmp_path / "runs").rglob("run.lock"):
        if (holder := lock_holder(lock.parent)) is not None:
            os.kill(holder.pid, signal.SIGKILL)


def test_a_run_is_launched_stopped_continued_and_promoted_from_its_pages(
    browser: Browser, serve: Any, run: Path
) -> None:
    page, errors = new_page(browser, messages=False)
    page.goto(serve("--runs", str(run.parent), "--allow-actions"))

    go(page, f"#/runs/{run.name}/launch")
    text = page.get_by_label("Run file (YAML)")
    whole = f"{text.input_value()}steps: 400\n".replace("steps: 3\n", "", 1)
    text.fill(whole.replace("steps: 400", "steps: many"))
    page.get_by_label("Name").fill("again")
    page.get_by_role("button", name="Start the run").click()
    page.get_by_text("the run file: steps: must be a whole number, not text").wait_for(timeout=MINUTES)
    assert text.evaluate("field => field.value.slice(field.selectionStart, field.selectionEnd)") == "steps: many"
    assert violations_everywhere(page) == []
    text.fill(whole)
    assert page.locator("main [role=alert]").count() == 0
    page.get_by_label("Name").fill("again")
    page.get_by_label("Check on the first batch").uncheck()
    page.get_by_role("button", name="Start the run").click()
    page.get_by_role("link", name="Open again").click(timeout=MINUTES)
    page.wait_for_function(
        "() => /step [1-9]\\d* of 400/.test(document.querySelector('main').textContent)", timeout=MINUTES
    )
    confirm(page, "Stop")
    page.wait_for_selector("main >> text=stopped", timeout=MINUTES)
    go(page, "#/runs/again")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector("main .crumbs >> text=running", timeout=MINUTES)
    confirm(page, "Stop")
    page.wait_for_selector("main .crumbs >> text=stopped", timeout=MINUTES)

    go(page, f"#/runs/{run.name}/versions?version=0")
    confirm(page, "Promote")
    page.wait_for_selector("text=chosen with leyden models promote", timeout=MINUTES)
    go(page, "#/jobs")
    page.wait_for_selector(f"text=promote {run.name} 0")
    assert page.locator("main tbody tr").count() == 5
    assert errors == []


def test_a_search_that_a_page_starts_trains_its_trials_and_ends_on_the_page_of_the_study(
    browser: Browser, serve: Any, run: Path
) -> None:
    page, errors = new_page(browser, messages=False)
    page.goto(serve("--runs", str(run.parent), "--allow-actions"))

    go(page, f"#/runs/{run.name}")
    page.get_by_role("link", name="Suggest settings").click()
    page.get_by_label("Trials", exact=True).fill("2")
    page.get_by_label("Seeds of each trial", exact=True).fill("4")
    values = page.get_by_label("Values of learning_rate")
    searched = values.input_value()
    values.fill("abc..def")
    page.get_by_role("button", name="Start the search").click()
    expect(page.get_by_role("alert")).to_contain_text("'abc' is not a finite number", timeout=MINUTES)
    assert page.get_by_text("Open the study").count() == 0
    values.fill(searched)
    page.get_by_role("button", name="Start the search").click()
    job = page.get_by_role("region", name="Job: Search for settings")
    expect(job.get_by_role("status")).to_contain_text("finished", timeout=2 * MINUTES)

    page.get_by_role("link", name=f"Open the study {run.name}-tune").click()
    trials = page.get_by_role("table", name="Trials")
    expect(trials.locator("tbody tr")).to_have_count(2)
    expect(trials.locator("tbody tr", has_text="default")).to_have_count(1)
    for trial in ("trial-0-seed-4", "trial-1-seed-4"):
        metrics = RunFolder(run.parent / f"{run.name}-tune" / trial).metrics()
        assert [line["step"] for line in metrics if "reward" in line] == [1, 2, 3]
    trials.get_by_role("link", name="seed 4").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("trial-0")
    assert errors == []


def test_the_pages_of_actions_break_no_rule_of_accessibility(
    browser: Browser, serve: Any, run: Path, tmp_path: Path
) -> None:
    page = browser.new_page()
    page.goto(serve("--runs", str(run.parent), "--allow-actions"))

    for route in (f"#/runs/{run.name}", f"#/runs/{run.name}/launch", "#/jobs"):
        go(page, route)
        assert violations_everywhere(page) == []
    go(page, f"#/runs/{run.name}/versions?version=0")
    page.get_by_label("Folder to export to").fill(str(tmp_path / "exported"))
    page.get_by_role("button", name="Export").click()
    page.wait_for_selector("main >> text=finished")
    assert violations_everywhere(page) == []
    page.get_by_role("button", name="Promote").click()
    assert violations_everywhere(page) == []


def go(page: Page, route: str) -> None:
    """Open a view, and wait until it shows its data."""
    page.evaluate("route => { location.hash = route }", route)
    page.wait_for_function("() => document.querySelector('main h1') && !document.querySelector('main [aria-busy]')")


def confirm(page: Page, action: str) -> None:
    """Press the button of an action, and agree in its dialog."""
    page.locator("main").get_by_role("button", name=action, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()
