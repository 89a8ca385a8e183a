"""The reward debugger in a real browser: editing, scoring, reading the result, and saving."""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from accessibility import violations_everywhere
from browser_page import new_page
from playwright.sync_api import Browser, Locator, Page, expect
from rescored_runs import OWN, rescored_run
from script_payloads import PAYLOADS

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/console"
EDITED = OWN.replace("return points(", 'return 0.1 * result["number"] + points(')
SCORING = 120_000
"""Milliseconds in which a scoring must end."""


def opened(browser: Browser, address: str, route: str) -> tuple[Page, list[str]]:
    """A page at a route of the console with this address, which may have a token; and the errors that it reports."""
    page, problems = new_page(browser, messages=False)
    page.on("request", lambda request: problems.extend(_elsewhere(request.url)))
    page.goto(address)
    page.goto(f"{address.partition('?')[0]}{route}")
    return page, problems


def _elsewhere(url: str) -> list[str]:
    return [] if urlsplit(url).hostname == "127.0.0.1" else [url]


def editor(page: Page) -> Locator:
    """The text area of the reward."""
    return page.locator("textarea")


def scored(page: Page) -> None:
    """Score the rollouts, and wait for the result."""
    page.get_by_role("button", name="Score the rollouts").click()
    page.get_by_role("heading", name="Result").wait_for(timeout=SCORING)
    page.get_by_role("link", name="train-v0-b0-0-0").first.wait_for()


def row(page: Page, table: str, name: str) -> str:
    """The text of a table's row."""
    return page.get_by_role("group", name=table, exact=True).locator("tr", has_text=name).inner_text()


def unfold(page: Page, title: str) -> None:
    """Open a part of the page that is folded."""
    page.locator("summary", has_text=title).evaluate("one => { one.parentElement.open = true }")


def take_pictures(page: Page) -> None:
    """Take the pictures of docs/console.md, without the command, which has paths of this machine."""
    page.wait_for_timeout(500)
    page.evaluate("scrollTo(0, 0)")
    job = page.locator("section[aria-label^=Job]").bounding_box()
    assert job is not None
    page.screenshot(path=PICTURES / "reward.png", clip={"x": 0, "y": 0, "width": 1280, "height": job["y"] - 8})
    unfold(page, "Groups that gain spread")
    page.set_viewport_size({"width": 1280, "height": 1130})
    page.get_by_role("heading", name="Result").evaluate("one => scrollTo(0, one.offsetTop - 16)")
    page.screenshot(path=PICTURES / "reward-result.png")


def test_a_reward_is_edited_scored_and_saved(browser: Browser, serve: Any, tmp_path: Path) -> None:
    rescored_run(tmp_path)
    address = serve("--runs", "runs", "--allow-actions", folder=tmp_path)
    page, problems = opened(browser, address, "#/runs/mine/reward")
    expect(editor(page)).to_have_value(OWN)

    editor(page).fill(EDITED)
    expect(page.get_by_text("The changes are kept in this tab")).to_be_visible()
    page.get_by_role("link", name="Rollouts", exact=True).click()
    page.get_by_role("heading", name="Rollouts").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(editor(page)).to_have_value(EDITED)

    scored(page)
    assert "8 of 8 stored rewards" in page.get_by_role("region", name="Scored, and control").inner_text()
    assert "the agent returned no result" in row(page, "Why rollouts have no new reward", "no result")
    assert row(page, "Groups", "gain spread").split()[-1] == "1"
    assert row(page, "Reward before and after", "Mean").split()[1] == "0.625"
    result = page.url
    assert re.search(r"job=\d+", result)
    page.get_by_role("link", name="train-v0-b0-1", exact=True).first.click()
    page.get_by_text("3 of 10 rollouts").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Result: rewards/own.py:score, edited").wait_for(timeout=SCORING)
    page.get_by_role("combobox", name="Rollouts").last.select_option("errors")
    page.get_by_text("1 of 1 rollout", exact=True).wait_for()

    page.get_by_text("Save as a file").click()
    page.get_by_role("button", name="Save as this file").click()
    page.get_by_text("Saved as rewards/own_2.py").wait_for()
    assert (tmp_path / "rewards/own_2.py").read_text() == EDITED
    assert (tmp_path / "rewards/own.py").read_text() == OWN
    expect(editor(page)).to_have_value(EDITED)
    expect(page.get_by_role("combobox", name="File")).to_have_value("rewards/own_2.py")
    new_file = page.get_by_role("textbox", name="New file")
    expect(new_file).to_have_value(re.compile("own_2_2.py$"))  # the page names the next one when it has saved
    new_file.fill("rewards/own.py")
    page.get_by_role("button", name="Save as this file").click()
    expect(page.get_by_role("alert")).to_contain_text("own.py exists, and is not overwritten")
    page.get_by_role("combobox", name="File").select_option("rewards/own.py")
    expect(editor(page)).to_have_value(OWN)
    assert problems == []


def test_the_time_of_a_job_that_reports_nothing_goes_on(browser: Browser, serve: Any, tmp_path: Path) -> None:
    rescored_run(tmp_path)
    address = serve("--runs", "runs", "--allow-actions", folder=tmp_path)
    page, problems = opened(browser, address, "#/runs/mine/reward")
    editor(page).fill("import time\ntime.sleep(600)\ndef score(task, result):\n    return 1\n")
    page.get_by_role("button", name="Score the rollouts").click()
    job = page.get_by_role("region", name="Job: ")
    expect(job.get_by_role("status")).to_contain_text("running")
    expect(job.get_by_text(re.compile(r"^([3-9]|\d\d)\.\d s$"))).to_be_visible(timeout=15_000)
    job.get_by_role("button", name="Stop").click()
    expect(job.get_by_role("status")).to_contain_text("stopped", timeout=30_000)
    assert problems == []


def test_keys_indent_and_let_the_reader_leave(browser: Browser, serve: Any, tmp_path: Path) -> None:
    rescored_run(tmp_path)
    address = serve("--runs", "runs", "--allow-actions", folder=tmp_path)
    page, problems = opened(browser, address, "#/runs/mine/reward")
    expect(editor(page)).to_have_value(OWN)

    editor(page).fill("")
    page.keyboard.type("def score(task, result):\nif task:\nreturn 1")
    expect(editor(page)).to_have_value("def score(task, result):\n    if task:\n        return 1")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("def score(task, result):\n    if task:\n    return 1    ")
    page.keyboard.press("Control+A")
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("    def score(task, result):\n        if task:\n        return 1    ")
    page.keyboard.press("Control+Z")
    expect(editor(page)).to_have_value("def score(task, result):\n    if task:\n    return 1    ")

    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("the reward is not Python: line 3: expected an indented block")
    page.get_by_role("button", name="Go to line 3").click()
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value(re.compile(r"if task:\n    $"))
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") != "TEXTAREA"
    page.get_by_role("button", name="Discard the changes").click()
    expect(editor(page)).to_have_value(OWN)
    assert problems == []


def test_a_result_breaks_no_rule_of_accessibility(browser: Browser, serve: Any, tmp_path: Path) -> None:
    """With LEYDEN_PICTURES=RUN, the folder of the calculator's run, pictures of docs/console.md are taken of it."""
    pictured = os.environ.get("LEYDEN_PICTURES")
    if pictured:
        key, reward = Path(pictured).name, "examples/calculator_langgraph/reward_near.py"
        address = serve("--runs", str(Path(pictured).parent), "--allow-actions")
    else:
        rescored_run(tmp_path)
        key, reward = "mine", "rewards/points.py"
        address = serve("--runs", "runs", "--allow-actions", folder=tmp_path)
    page, problems = opened(browser, address, f"#/runs/{key}/reward")
    page.get_by_role("combobox", name="File").select_option(reward)
    expect(page.get_by_label(f"Text of {reward}")).not_to_be_empty()
    if not pictured:
        page.get_by_role("combobox", name="Function").fill("near")
    page.get_by_role("button", name="Score the rollouts").click()
    page.get_by_role("heading", name="Result").wait_for(timeout=SCORING)
    page.locator("table.virtual tbody a").first.wait_for()
    if pictured:
        take_pictures(page)
    unfold(page, "Save as a file")
    unfold(page, "Counts")
    unfold(page, "Groups that gain spread")

    assert violations_everywhere(page) == []
    assert problems == []


def test_a_console_that_only_reads_shows_the_reward_and_the_command(
    browser: Browser, serve: Any, tmp_path: Path
) -> None:
    rescored_run(tmp_path)
    page, problems = opened(browser, f"{serve('--runs', 'runs', folder=tmp_path)}/", "#/runs/mine/reward")

    expect(editor(page)).to_have_value(OWN)
    assert editor(page).get_attribute("readonly") is not None
    expect(page.locator("code", has_text="leyden console --allow-actions")).to_be_visible()
    expect(page.locator("code", has_text="leyden rescore mine --reward rewards/own.py:score")).to_be_visible()
    assert page.get_by_role("button", name="Score the rollouts").count() == 0
    assert problems == []


def test_no_text_of_a_reward_or_an_address_runs_as_code(browser: Browser, serve: Any, tmp_path: Path) -> None:
    rescored_run(tmp_path)
    address = serve("--runs", "runs", "--allow-actions", folder=tmp_path)
    page, problems = opened(browser, address, "#/runs/mine/reward")
    texts = PAYLOADS[::20]
    editor(page).fill(
        f"TEXTS = {texts!r}\nseen = []\n\ndef score(task, result):\n    seen.append(task)\n"
        "    text = TEXTS[len(seen) % len(TEXTS)]\n    if len(seen) % 2:\n        raise ValueError(text)\n"
        "    return {text: len(seen) / 7}, text\n"
    )
    scored(page)
    for order in ("all", "errors"):
        page.get_by_role("combobox", name="Rollouts").last.select_option(order)
        page.wait_for_timeout(300)
    for text in texts:
        shown = quote(text, safe="")
        for name in ("file", "name", "function", "weights", "job", "sort"):
            page.evaluate("route => { location.hash = route }", f"#/runs/mine/reward?{name}={shown}")
            page.wait_for_function(
                "() => document.querySelector('main h1') && !document.querySelector('main [aria-busy]')"
            )

    assert page.evaluate("window.hacked") is None
    assert problems == []
