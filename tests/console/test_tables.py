"""Tables and filters in a real browser: nothing that a reader compares is cut, and a filter can be taken back."""

from pathlib import Path
from typing import Any

import pytest
from browser_page import new_page
from console_runs import add_rollout, made_run, run_apart
from playwright.sync_api import Browser, Page, Route, expect

from leyden.core.trainer.run_folder.report import HeldOutResult, RunReport

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CUT = """() => [...document.querySelectorAll("table.virtual th, table.virtual td.number")]
    .filter((cell) => cell.offsetParent && cell.scrollWidth > cell.clientWidth)
    .map((cell) => cell.textContent)"""
"""Headings and numbers of the page's tables that are cut."""
LONG = ("val-a_set_of_tasks-before-v0-agent-", "val-a_set_of_tasks-during-v4-policy-")


def runs_with_long_numbers(folder: Path) -> Path:
    """A folder with a run whose numbers and names are long, and a copy of it under another name."""
    for name in ("long", "copy"):
        run = made_run(folder, name)
        run.config_file.write_text(run.config_file.read_text().replace("name: copy", "name: long"))
        run.append_metrics({"step": 1000, "reward": -0.0001235, "loss": 0.1})
        held_out = {"val": HeldOutResult(tasks=4, before=-0.012345, after=-0.0001235)}
        run.write_report(RunReport(name="long", seed=0, steps=1000, seconds=3599.0, held_out=held_out))

        async def stored(run: Any = run) -> None:
            store = await run.store_location.open()
            for number, reward in enumerate((-0.0001235, -0.012345, -1.2345e-5, 0.5)):
                metadata = {"task": "0/1", "row": 12345}
                await add_rollout(store, f"train-v0-b0-1-{number}", reward=reward, metadata=metadata)
            for row in range(2):
                for start in LONG:
                    await add_rollout(store, f"{start}{row}", "val", 1.0, metadata={"task": row})
            await store.close()

        run_apart(stored())
    return folder


def shown(page: Page, address: str, route: str) -> None:
    """Open a route, and wait until its first table has rows."""
    page.goto("about:blank")
    page.goto(f"{address}/{route}")
    page.locator("table.virtual tbody a:visible").first.wait_for()


def test_no_heading_and_no_number_is_cut(browser: Browser, serve: Any, tmp_path: Path) -> None:
    address = serve("--runs", str(runs_with_long_numbers(tmp_path)))
    page, errors = new_page(browser)
    routes = ("#/runs", "#/runs/long/rollouts", "#/runs/long/rollouts?view=groups", "#/runs/long/steps/1")
    for route in (*routes, "#/compare?runs=long,copy"):
        shown(page, address, route)
        assert page.evaluate(CUT) == [], route
        buttons = page.locator("table.virtual .sort")
        for number in range(buttons.count()):
            buttons.nth(number).click()
            assert page.evaluate(CUT) == [], (route, number)
    assert errors == []


def test_ids_that_are_too_long_keep_what_distinguishes_them(browser: Browser, serve: Any, tmp_path: Path) -> None:
    address = serve("--runs", str(runs_with_long_numbers(tmp_path)))
    page, errors = new_page(browser)
    shown(page, address, "#/runs/long/rollouts?mode=val&sort=id")
    for start in LONG:
        link = page.get_by_role("link", name=f"{start}1", exact=True)
        expect(link).to_have_attribute("title", f"{start}1")
        end = link.locator(":last-child")
        cell, box = link.locator("..").bounding_box(), end.bounding_box()
        assert link.inner_text() == f"{start}1"
        assert end.inner_text() == f"{start}1"[-14:]
        assert cell is not None and box is not None and box["x"] + box["width"] <= cell["x"] + cell["width"]
    assert errors == []


def test_a_copied_run_is_told_from_the_original(browser: Browser, serve: Any, tmp_path: Path) -> None:
    address = serve("--runs", str(runs_with_long_numbers(tmp_path)))
    page, errors = new_page(browser)
    shown(page, address, "#/runs")
    names = page.locator("table.virtual tbody tr:visible a").all_inner_texts()
    assert sorted(names) == ["long", "long (copy)"]

    shown(page, address, "#/compare?runs=long,copy")
    for label in ("long", "long (copy)"):
        expect(page.get_by_role("list", name="Chosen runs").get_by_text(f"{label} ×", exact=True)).to_be_visible()
        expect(page.get_by_role("group", name="Runs").get_by_role("link", name=label, exact=True)).to_be_visible()
        expect(page.locator(".legend").get_by_text(label, exact=False).first).to_be_visible()
        expect(page.get_by_role("columnheader", name=label, exact=True).first).to_be_visible()
    page.get_by_role("link", name="long (copy)").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("long (copy)")
    expect(page).to_have_title("long (copy) · Leyden")
    assert errors == []


def test_filters_that_match_nothing_are_shown_and_can_be_cleared(browser: Browser, serve: Any, tmp_path: Path) -> None:
    address = serve("--runs", str(made_run(tmp_path).path.parent))
    page, errors = new_page(browser)
    page.goto(f"{address}/#/runs?state=zzz&sort=name")
    expect(page.get_by_label("State")).to_have_value("zzz")
    expect(page.get_by_role("status").get_by_text("0 of 1 run", exact=True)).to_be_visible()
    page.get_by_role("button", name="Clear filters").click()
    expect(page.get_by_role("link", name="small")).to_be_visible()
    expect(page.get_by_role("button", name="Clear filters")).to_be_hidden()
    assert page.url.endswith("#/runs?sort=name")

    shown(page, address, "#/runs/small/rollouts?trained=perhaps&step=abc")
    expect(page.get_by_role("combobox", name="Trained", exact=True)).to_have_value("")
    expect(page.get_by_text("5 rollouts", exact=True)).to_be_visible()
    page.goto(f"{address}/#/compare")
    expect(page.get_by_text("Choose at least two runs")).to_be_visible()
    expect(page.locator(".command code")).to_contain_text("leyden train")
    assert errors == []


def test_why_rollouts_were_not_trained_says_that_it_loads(browser: Browser, serve: Any, tmp_path: Path) -> None:
    address = serve("--runs", str(made_run(tmp_path).path.parent))
    page, errors = new_page(browser)
    held: list[Route] = []
    page.route("**/api/runs/small/why", lambda route: held.append(route))
    shown(page, address, "#/runs/small/rollouts")
    page.get_by_text("What was not trained, and why").click()
    fold = page.locator("details", has_text="What was not trained")
    expect(fold.get_by_text("Loading…")).to_be_visible()
    held[0].continue_()
    expect(fold.get_by_role("group", name="Rollouts that were not trained")).to_be_visible()
    expect(fold.get_by_text("Loading…")).to_have_count(0)
    assert errors == []
