"""The page Try in a real browser: prompts found, a text edited, a trial watched, a task's rollouts opened."""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from accessibility import violations_everywhere
from browser_page import SIZE, new_page
from playwright.sync_api import Browser, Page, expect

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TEXT = "Evaluate an expression. Answer with the second number of the question."
WAIT = 120_000
PICTURES = Path(__file__).parents[2] / "docs/console"


def test_two_prompts_are_compared_and_watched(browser: Browser, serve: Any, small_run: Path) -> None:
    """With LEYDEN_PICTURES=RUN, the folder of a run among others, the pictures of docs/console.md are taken of it."""
    pictured = os.environ.get("LEYDEN_PICTURES")
    run = Path(pictured) if pictured else small_run
    address = serve("--runs", str(run.parent), "--allow-actions")
    page, errors = new_page(browser)
    hosts = set[str]()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or ""))
    page.goto(address)
    open_form(page, run.name)
    page.get_by_role("button", name="Find the prompts").click()
    expect(page.locator("textarea")).to_have_count(2, timeout=WAIT)
    area = page.locator("textarea").last
    assert area.input_value() == "Evaluate an arithmetic expression."
    area.fill(TEXT)
    expect(page.locator(".diff .added")).to_have_text(f"+ {TEXT}")
    tasks = 16 if pictured else 8  # the small run has no more
    page.get_by_label("Number of tasks").fill(str(tasks))
    if pictured:
        page.screenshot(path=PICTURES / "try_form.png")
    page.get_by_role("button", name="Compare").click()

    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Trial"))
    rows = page.locator("table.virtual tbody tr:not([hidden])")
    expect(rows.filter(has_text="question")).to_have_count(tasks, timeout=WAIT)
    result = page.get_by_role("region", name="Result")
    expect(result).to_be_visible(timeout=WAIT)
    expect(result.locator("strong")).to_have_text(re.compile(r"(sign test, 5 %|than with A)\)?\.$"))
    numbers = result.get_by_role("row").filter(has_text="reward").first.locator("td").all_inner_texts()
    assert numbers[1] == str(tasks) and numbers[2].endswith("%") and " to " in numbers[5]
    assert sum(map(int, numbers[6:9])) == tasks, "each task was won, lost or tied"
    unfold = page.locator("summary", has_text="Texts of both variants")
    unfold.click()
    expect(page.locator(".diff .added")).to_have_text(f"+ {TEXT}")
    unfold.click()

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Task 2", exact=True)).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("tree")).to_have_count(2)
    assert "task=2" in page.url
    if pictured:
        page.set_viewport_size({"width": 1280, "height": 1500})  # the result, the tasks and the trees
        result.evaluate("node => node.scrollIntoView()")
        page.wait_for_timeout(1000)
        page.screenshot(path=PICTURES / "try.png")
        page.set_viewport_size(SIZE)

    page.reload()
    expect(page.get_by_role("heading", name="Task 2", exact=True)).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("region", name="Result")).to_be_visible(timeout=WAIT)
    page.locator(".tree-line").filter(has_text="chat").first.click()
    page.get_by_role("link", name="Open the call, token by token").first.click()
    expect(page.locator(".crumbs")).to_contain_text("two variants on")
    assert page.get_by_role("navigation", name="Pages of the run").get_by_role("link").all_inner_texts() == [
        "Overview",
        "Rollouts",
    ]
    assert (hosts, errors) == ({"127.0.0.1"}, [])


def test_the_page_breaks_no_rule_of_accessibility(browser: Browser, serve: Any, small_run: Path) -> None:
    page, _ = new_page(browser)
    violations: dict[str, list[str]] = {}

    def check(name: str) -> None:
        if found := violations_everywhere(page):
            violations[name] = found

    page.goto(serve("--runs", str(small_run.parent), "--allow-actions"))
    open_form(page, small_run.name)
    check("without prompts")
    page.get_by_role("button", name="Find the prompts").click()
    check("while prompts are found")
    expect(page.locator("textarea")).to_have_count(2, timeout=WAIT)
    page.locator("textarea").last.fill(TEXT)
    check("form")
    page.get_by_label("Number of tasks").fill("2")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("region", name="Result")).to_be_visible(timeout=WAIT)
    page.locator("table.virtual tbody:not(.spacer) tr").first.click()
    expect(page.get_by_role("tree")).to_have_count(2, timeout=WAIT)
    check("trial")

    assert violations == {}


def test_two_versions_answer_the_same_prompts(browser: Browser, serve: Any, small_run: Path) -> None:
    page, errors = new_page(browser)
    page.goto(serve("--runs", str(small_run.parent), "--allow-actions"))
    page.evaluate("location.hash = '#/runs/small/try?b=own&policy-a=0&policy-b=3&n=2'")
    expect(page.get_by_role("region", name="Variant B").get_by_label("Answered by")).to_have_value("3")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("region", name="Result")).to_be_visible(timeout=WAIT)
    expect(page.locator("main")).to_contain_text("answered by version 3")
    assert "--policy-a small:0 --policy-b small:3" in page.locator("main").inner_text()
    columns = page.evaluate("() => fetch('api/runs/trial:1/rollouts').then(answer => answer.json())")["columns"]
    recorded = {(name.split("-")[2], version) for name, version in zip(columns["id"], columns["version"], strict=True)}
    assert recorded == {("a", 0), ("b", 3)}
    assert errors == []


def test_a_console_that_only_reads_shows_the_commands(browser: Browser, serve: Any, small_run: Path) -> None:
    page, errors = new_page(browser)
    page.goto(serve("--runs", str(small_run.parent)))
    page.evaluate("location.hash = '#/runs/small/try'")
    commands = page.locator(".command code")
    expect(commands).to_have_count(4)
    starts = [text.split(" --")[0] for text in commands.all_inner_texts()]
    agent = "examples/calculator_langgraph/agent.py:agent"
    assert starts[:1] == ["leyden console"]
    assert [
        one.startswith(f"leyden prompts {what} {agent}") for one, what in zip(starts[1:], ("find", "try"), strict=False)
    ] == [True, True]
    assert errors == []


def open_form(page: Page, run: str) -> None:
    page.evaluate("hash => { location.hash = hash }", f"#/runs/{run}/try")
    expect(page.get_by_role("region", name="Variant B")).to_be_visible()
