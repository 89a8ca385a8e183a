"""The chat page in a real browser, with versions of a real run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from accessibility import violations_everywhere
from browser_page import new_page
from playwright.sync_api import Browser, Page, expect
from script_payloads import PAYLOADS

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
WAIT = 120_000
"""Milliseconds in which a version is loaded and answers."""


def opened(browser: Browser, serve: Any, run: Path, query: str = "") -> tuple[Page, list[str]]:
    """The chat page of a console with actions, and the errors that it reports."""
    page, errors = new_page(browser)
    address = serve("--runs", str(run.parent), "--allow-actions")
    page.goto(address)
    page.goto(f"{address.partition('?')[0].rstrip('/')}/#/runs/{run.name}/chat{query}")
    page.get_by_label("Message", exact=True).wait_for()
    return page, errors


def send(page: Page, text: str) -> None:
    """Send a message, and wait until all versions have answered."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden(timeout=WAIT)


def test_two_versions_answer_side_by_side(browser: Browser, serve: Any, small_run: Path) -> None:
    """With LEYDEN_PICTURES=RUN, the folder of a run, the page's picture in docs/console.md is taken of it."""
    pictured = os.environ.get("LEYDEN_PICTURES")
    page, errors = opened(browser, serve, Path(pictured) if pictured else small_run, "?beside=0")

    send(page, "What is 3 plus 4?")

    expect(page.get_by_text("tokens a second")).to_have_count(2)
    heading = page.get_by_text("Tokens (").first
    counted = page.locator(".answers section > p.note").first.inner_text().partition(" token")[0]
    assert heading.inner_text().startswith(f"Tokens ({counted}")
    heading.click()
    page.get_by_role("option").filter(visible=True).last.click()
    expect(page.get_by_text("log-probability −").first).to_be_visible()
    if pictured:
        page.screenshot(path=ROOT / "docs/console/chat.png")
    assert violations_everywhere(page) == []
    texts = page.locator(".answers > section > pre").all_inner_texts()

    page.evaluate("location.hash = '#/runs'")
    page.wait_for_selector("main h1:has-text('Runs')")
    page.go_back()

    expect(page.get_by_text("tokens a second")).to_have_count(2)
    assert page.locator(".answers > section > pre").all_inner_texts() == texts
    assert errors == []


def test_a_message_is_edited_and_the_conversation_cleared(browser: Browser, serve: Any, small_run: Path) -> None:
    page, errors = opened(browser, serve, small_run)
    send(page, "What is 3 plus 4?")
    send(page, "And 2 plus 2?")
    assert page.get_by_role("heading", name="You").count() == 2

    page.get_by_role("button", name="Edit: message 1").click()
    send(page, "What is 1 plus 1?")

    assert page.get_by_role("heading", name="You").count() == 1
    expect(page.locator("main")).not_to_contain_text("What is 3 plus 4?")
    page.get_by_role("button", name="Send again: message 1").click()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden(timeout=WAIT)
    page.get_by_role("button", name="Clear").click()
    assert page.get_by_role("heading", name="You").count() == 0
    assert errors == []


def test_a_long_answer_is_stopped(browser: Browser, serve: Any, small_run: Path) -> None:
    page, errors = opened(browser, serve, small_run)
    page.get_by_label("Message", exact=True).fill("What is 3 plus 4?")
    page.get_by_role("button", name="Send", exact=True).click()

    page.get_by_role("button", name="Stop").click()

    expect(page.get_by_text("You stopped this answer.")).to_be_visible()
    send(page, "What is 3 plus 4?")
    expect(page.get_by_text("tokens a second")).to_have_count(1)
    assert errors == []


def test_a_message_whose_page_is_loaded_again_is_kept(browser: Browser, serve: Any, small_run: Path) -> None:
    page, errors = opened(browser, serve, small_run)
    page.get_by_label("Message", exact=True).fill("What is 3 plus 4?")
    page.get_by_role("button", name="Send", exact=True).click()

    page.reload()

    expect(page.get_by_text("What is 3 plus 4?")).to_be_visible()
    expect(page.get_by_text("The answer broke off")).to_be_visible()
    assert errors == []


def test_no_text_of_an_answer_runs_as_code(browser: Browser, serve: Any, small_run: Path) -> None:
    page, errors = opened(browser, serve, small_run)
    parts = [{"text": text, "reasoning": text, "tokens": [[text, -0.5]]} for text in PAYLOADS]
    end = {"end": {"finish": PAYLOADS[0], "prompt_tokens": 1, "tokens": 1, "first_seconds": 1, "seconds": 1}}
    error = {"error": PAYLOADS[1]}
    lines = [{"state": "loading", "job": PAYLOADS[2]}, *parts, end, error]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    page.route("**/chat", lambda route: route.fulfill(body=body, content_type="application/x-ndjson"))
    for text in PAYLOADS[:20]:
        page.get_by_label("Message", exact=True).fill(text)
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    for summary in page.locator(".answers summary").all():
        summary.click()

    assert page.locator(".answers .token").count() >= len(PAYLOADS)
    assert page.evaluate("window.hacked") is None
    assert errors == []


def test_what_cannot_be_served_is_one_sentence_on_the_page(browser: Browser, serve: Any, small_run: Path) -> None:
    page, _ = opened(browser, serve, small_run)
    checkpoint = next(small_run.glob("checkpoints/step-*3*"))
    away = checkpoint.rename(small_run / "away")
    try:
        send(page, "What is 3 plus 4?")
        expect(page.get_by_role("alert")).to_contain_text("are not kept")
    finally:
        away.rename(checkpoint)


def test_a_console_that_only_reads_names_the_command(browser: Browser, serve: Any, small_run: Path) -> None:
    page = browser.new_page()
    page.goto(f"{serve('--runs', str(small_run.parent))}/#/runs/small/chat")

    expect(page.get_by_text("leyden console --allow-actions")).to_be_visible()
    expect(page.get_by_text("leyden models serve small:3")).to_be_visible()
