"""The console in a real browser: every view of a real run, attacks by text, accessibility."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from accessibility import violations_everywhere
from browser_page import SIZE, new_page
from browser_tour import tour
from console_runs import add_rollout, made_run, run_apart
from playwright.sync_api import Browser, Dialog, Page
from script_payloads import PAYLOADS

from leyden.core.data import semconv
from leyden.core.data.resources import PromptTemplate
from leyden.core.errors import RunError
from leyden.core.store.open import open_store
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/console"
SHOWN = ("runs", "run", "rollouts", "rollout", "pair", "call", "step", "compare")
"""Views of which the documentation has a picture."""


def noting_page(browser: Browser) -> tuple[Page, set[str], list[str]]:
    """A page, the hosts that it requests something from, and the exceptions that nothing caught."""
    page, errors = new_page(browser, messages=False)
    hosts = set[str]()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or request.url[:20]))
    return page, hosts, errors


def test_every_view_of_a_real_run_opens_without_an_error(browser: Browser, serve: Any, small_run: Path) -> None:
    """With LEYDEN_PICTURES=RUN, the folder of a run among others, the pictures of docs/console.md are taken of it."""
    pictured = os.environ.get("LEYDEN_PICTURES")
    run = Path(pictured) if pictured else small_run
    if not pictured:
        made_run(small_run.parent, "another")
    address = serve("--runs", str(run.parent))
    seen: list[str] = []

    def shot(page: Page, name: str) -> None:
        seen.append(name)
        if pictured and name in SHOWN:
            page.wait_for_timeout(2_000)
            page.screenshot(path=PICTURES / f"{name}.png")

    page, hosts, _ = noting_page(browser)

    problems = tour(page, address, run.name, shot)

    assert problems == []
    assert hosts == {"127.0.0.1"}
    assert {
        "runs",
        "run",
        "rollouts",
        "rollout",
        "pair",
        "call",
        "versions",
        "health",
        "bottlenecks",
        "compare",
    } <= set(seen)


def test_the_token_losses_that_are_shown_add_up_to_the_logged_loss(
    browser: Browser, serve: Any, small_run: Path
) -> None:
    page, *_ = noting_page(browser)
    page.goto(serve("--runs", str(small_run.parent)))

    for number in (1, 2, 3):
        found = api(page, f"runs/small/step/{number}")["policies"]["policy"]
        steps = [line for line in RunFolder(small_run).metrics() if "loss" in line]
        logged = steps[number - 1]["loss"]
        assert found["loss"] == logged
        assert found["sum"] == pytest.approx(logged, abs=1e-6)
        call = found["calls"][0]
        path = f"runs/small/rollouts/{call['rollout']}/calls/{call['span']}?attempt={call['attempt']}"
        (step,) = api(page, path)["trained"]
        assert sum(step["losses"]) == pytest.approx(call["share"], abs=1e-9)


def test_no_view_breaks_a_rule_of_accessibility(browser: Browser, serve: Any, small_run: Path) -> None:
    page, *_ = noting_page(browser)
    violations: dict[str, list[str]] = {}

    def check(page: Page, name: str) -> None:
        if found := violations_everywhere(page):
            violations[name] = found

    tour(page, serve("--runs", str(small_run.parent)), "small", check)

    assert violations == {}


def test_no_text_of_an_agent_runs_as_code(browser: Browser, serve: Any, tmp_path: Path) -> None:
    """Each of 200 rollouts has another attack in every field that an agent or its user fills."""
    folder = made_run(tmp_path / "runs", "attacked")
    attack(folder)
    address = serve("--runs", str(tmp_path / "runs"))
    page, hosts, errors = noting_page(browser)
    dialogs: list[str] = []

    def opened(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", opened)
    page.goto(address)

    own = ("", "/rollouts", "/versions", "/prompts", "/health", "/bottlenecks")
    for route in (*own, "/reward", "/try", "/chat", "/launch", "/suggestions"):
        visit(page, f"#/runs/attacked{route}")
    for number in range(len(PAYLOADS)):
        visit(page, f"#/runs/attacked/rollouts/attack-{number}")
        if number % 10 == 0:
            visit(page, f"#/runs/attacked/rollouts/attack-{number}/calls/{1:016x}")

    assert page.evaluate("window.hacked") is None
    assert (dialogs, errors, hosts) == ([], [], {"127.0.0.1"})


def test_a_run_that_is_read_from_its_store_alone_names_no_command_that_continues_it(
    browser: Browser, serve: Any, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path / 'captures.db'}"

    async def stored() -> None:
        store = await open_store(uri)
        await store.close()

    run_apart(stored())
    page, _, errors = noting_page(browser)
    page.goto(serve(uri))
    run = page.locator("tbody a").first.get_attribute("href")

    for route in ("/rollouts", "/versions", "/bottlenecks"):
        visit(page, f"{run}{route}")
        page.locator(".empty").wait_for()
        assert page.locator("main").get_by_text("leyden train").count() == 0, route
    visit(page, f"{run}/absent")
    assert page.title() == "No such page · Leyden"
    assert errors == []


def test_why_a_run_ended_is_seen_without_scrolling(browser: Browser, serve: Any, tmp_path: Path) -> None:
    made_run(tmp_path, "lost", finished=False).note_session_error(RunError("the disk is full"))
    page, _, errors = noting_page(browser)
    page.goto(serve("--runs", str(tmp_path)))

    cell = page.locator("td[title='the disk is full']")
    cell.wait_for()

    box = cell.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= SIZE["width"]
    assert page.locator("[data-list]").evaluate("list => list.scrollWidth - list.clientWidth") == 0
    page.get_by_role("link", name="lost").click()
    page.locator("main .notice.bad").get_by_text("failed: the disk is full").wait_for()
    assert errors == []


def test_runs_are_chosen_and_compared_with_keys_alone(browser: Browser, serve: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_run(tmp_path, name)
    page, _, errors = noting_page(browser)
    page.goto(serve("--runs", str(tmp_path)))
    page.locator("tbody a").first.wait_for()

    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Compare 2").wait_for()
    address = page.url
    page.reload()
    page.get_by_role("button", name="Compare 2").wait_for()
    assert page.url == address
    assert page.get_by_role("checkbox", checked=True).count() == 2
    for key in ("j", "x", "x", "g", "c"):
        page.keyboard.press(key)
    page.wait_for_function("() => location.hash.startsWith('#/compare?runs=')")

    page.locator("main").get_by_role("link", name="two").first.wait_for()
    page.go_back()
    page.get_by_role("button", name="Compare 2").wait_for()
    assert errors == []


def test_series_that_are_seldom_needed_are_opened_with_keys_and_kept_in_the_address(
    browser: Browser, serve: Any, small_run: Path
) -> None:
    page, _, errors = noting_page(browser)
    page.goto(f"{serve('--runs', str(small_run.parent))}/#/runs/small")
    heading = page.locator("summary", has_text="Other series")
    heading.wait_for()
    important = page.locator(".charts h3").all_inner_texts()

    assert not heading.locator("..").get_attribute("open")
    assert {"Reward", "Held-out tasks", "Update"} <= set(important)
    assert len(important) < 12
    assert page.get_by_text("ratio_p01").count() == 0
    heading.focus()
    page.keyboard.press("Enter")
    page.get_by_text("mismatch_ratio_p01").first.wait_for()
    page.wait_for_function("() => location.hash.endsWith('?others=open')")
    assert violations_everywhere(page) == []

    page.reload()
    page.get_by_text("mismatch_ratio_p01").first.wait_for()
    heading.click()
    page.wait_for_function("() => location.hash.endsWith('#/runs/small')")
    assert page.get_by_text("mismatch_ratio_p01").count() == 0
    page.get_by_label("Search series").fill("ratio_p01")
    page.get_by_text("mismatch_ratio_p01").first.wait_for()
    assert errors == []


def test_a_link_with_an_attack_runs_nothing(browser: Browser, serve: Any, small_run: Path) -> None:
    page, hosts, errors = noting_page(browser)
    page.goto(serve("--runs", str(small_run.parent)))

    for payload in PAYLOADS[::10]:
        for route in (
            "#/{}",
            "#/runs/{}",
            "#/runs/small/rollouts?search={}",
            "#/compare?runs={}",
            "#/runs/small/rollouts/{}",
        ):
            visit(page, route.format(quote(payload, safe="")))

    assert page.evaluate("window.hacked") is None
    assert (errors, hosts) == ([], {"127.0.0.1"})


def test_a_run_is_seen_to_learn_while_it_trains(
    browser: Browser, serve: Any, start: Any, train_arguments: Any, tmp_path: Path
) -> None:
    running = start(*train_arguments(tmp_path, "live", "--steps", "6", "--no-check"))
    try:
        while not (tmp_path / "live/config.yaml").exists():
            assert running.returncode is None
        page, _, errors = noting_page(browser)
        page.goto(f"{serve('--runs', str(tmp_path))}/#/runs/live")
        seen = "() => /step [1-5] of 6/.test(document.querySelector('main').textContent)"
        page.wait_for_function(seen, timeout=120_000)
        page.wait_for_selector("text=step 6 of 6", timeout=120_000)
        page.wait_for_selector("main >> text=finished", timeout=60_000)
    finally:
        running.ended(120)
    assert errors == []


def api(page: Page, path: str) -> Any:
    """The answer of the API, requested by the page."""
    return json.loads(page.evaluate("path => fetch(`api/${path}`).then(answer => answer.text())", path))


def visit(page: Page, route: str) -> None:
    """Open a view, and wait until it shows its data or an error."""
    page.evaluate("route => { location.hash = route }", route)
    page.wait_for_function("() => document.querySelector('main h1') && !document.querySelector('main [aria-busy]')")


def attack(folder: RunFolder) -> None:
    """Write the payloads into a run."""

    async def stored() -> None:
        store = await folder.store_location.open()
        for number, text in enumerate(PAYLOADS):
            await add_rollout(
                store,
                f"attack-{number}",
                error=text if number % 2 else "",
                question=text,
                metadata={"task": text, "row": text},
                attributes={
                    semconv.AGENT_NAME: text,
                    semconv.NODE: text,
                    semconv.POLICY: text,
                    semconv.RESPONSE_MODEL: text,
                    semconv.INPUT_MESSAGES: json.dumps([{"role": text, "content": text, "name": text}]),
                    semconv.OUTPUT_MESSAGES: json.dumps(
                        [
                            {
                                "role": "assistant",
                                "content": text,
                                "tool_calls": [{"function": {"name": text, "arguments": text}}],
                            }
                        ]
                    ),
                    semconv.TOOL_DEFINITIONS: json.dumps([{"type": "function", "function": {"name": text}}]),
                    semconv.FINISH_REASONS: [text],
                    semconv.LEFT_OUT: text,
                    text: text,
                },
            )
        await store.close()

    run_apart(stored())
    for step, text in enumerate(PAYLOADS, 3):
        folder.append_metrics({"step": step, "reward": 0.5, f"rollouts_left_out/{text}": 1, "seconds": 1.0})
        folder.append_metrics({"step": step, "alert": text, "message": text})
        VersionFile(folder.path).append(
            ModelVersion(
                run="attacked",
                version=step,
                parent=None,
                created=1.0,
                algorithm=text,
                seed=0,
                prompts={text: PromptTemplate(template=text, engine="f-string")},
            )
        )
