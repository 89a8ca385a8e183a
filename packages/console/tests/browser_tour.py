"""Opens every view of the console in a browser, and hands each to a function that takes a picture or checks it."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

from browser_page import errors_of
from playwright.sync_api import Page

Shot = Callable[[Page, str], None]

WAIT = 15_000
"""Milliseconds in which a view must show its data."""


def tour(page: Page, base: str, run_key: str, shot: Shot) -> list[str]:
    """Opens each view of the run and calls `shot` with the page and the view's name when its data is there.

    Args:
        page: a page of a browser.
        base: address of the console, such as `http://127.0.0.1:8000`.
        run_key: key of a run that has rollouts.
        shot: takes a picture, or checks the page.

    Returns:
        What the browser reported as an error meanwhile: messages of its console, and exceptions that nothing caught.
    """
    problems = errors_of(page)
    page.goto(f"{base}/")
    for name, route in _routes(page, run_key):
        page.evaluate("route => { location.hash = route }", route)
        page.wait_for_function(_SETTLED, timeout=WAIT)
        shot(page, name)
    return problems


_SETTLED = """() => {
    const main = document.getElementById("main");
    const isWaiting = main.querySelector("[aria-busy]") !== null;
    const body = main.querySelector(".run-body");
    const isDrawn = body === null || body.hasChildNodes();
    return main.querySelector("h1") !== null && isDrawn && !isWaiting && main.textContent.length > 80;
}"""


def _routes(page: Page, key: str) -> Iterator[tuple[str, str]]:
    """Yields name and hash of each view; those of a rollout and a call only if the run has some."""
    run = f"#/runs/{quote(key, safe='')}"
    yield "runs", "#/runs"
    yield "run", run
    ids = _rollout_ids(page, key)  # first, as the server has then read all rollouts
    yield "rollouts", f"{run}/rollouts"
    yield "groups", f"{run}/rollouts?view=groups"
    yield from _rollout_routes(page, key, run, ids)
    for view in ("versions", "chat", "prompts", "reward", "try", "health", "bottlenecks"):
        yield view, f"{run}/{view}"
    keys = [one["key"] for one in _api(page, "runs")["runs"]]
    if len(keys) > 1:
        other = next(one for one in keys if one != key)
        yield "compare", f"#/compare?{urlencode({'runs': f'{key},{other}'})}"


def _rollout_routes(page: Page, key: str, run: str, ids: list[str]) -> Iterator[tuple[str, str]]:
    if not ids:
        return
    yield "rollout", f"{run}/rollouts/{quote(ids[0], safe='')}"
    if len(ids) > 1:
        yield "pair", f"#/compare/rollouts?{urlencode({'a': f'{key}/{ids[0]}', 'b': f'{key}/{ids[1]}'})}"
    rollout = _api(page, f"runs/{quote(key, safe='')}/rollouts/{quote(ids[0], safe='')}")
    for attempt in rollout["attempts"]:
        for span in attempt["spans"]:
            if span["model"] and span["model"]["has_tokens"]:
                query = urlencode({"attempt": attempt["id"]})
                yield "call", f"{run}/rollouts/{quote(ids[0], safe='')}/calls/{quote(span['id'], safe='')}?{query}"
                for step in span["model"]["steps"][:1]:
                    yield "step", f"{run}/steps/{step.split()[-1]}"
                return


def _rollout_ids(page: Page, key: str) -> list[str]:
    """A rollout that called a model, a trained one if there is one, and another of its group if there is one.

    The server reads rollouts in the background, so it is asked again until it has read all.
    """
    found: dict[str, Any] = {}
    for _ in range(120):
        found = _api(page, f"runs/{quote(key, safe='')}/rollouts")
        if found["indexed"] >= found["total"] > 0:
            break
        page.wait_for_timeout(250)
    columns: dict[str, list[Any]] = found["columns"]
    rows = [{name: values[at] for name, values in columns.items()} for at in range(len(columns["id"]))]
    called = sorted((row for row in rows if row["calls"]), key=lambda row: not row["trained"])
    if not called:
        return []
    first = called[0]
    others = [row for row in called[1:] if row["group"] == first["group"]] or called[1:]
    others.sort(key=lambda row: row["reward"] == first["reward"])
    return [row["id"] for row in (first, *others[:1])]


def _api(page: Page, path: str) -> Any:
    """The answer of the API, requested by the page, so that its cookie counts."""
    return json.loads(page.evaluate("path => fetch(`api/${path}`).then(answer => answer.text())", path))
