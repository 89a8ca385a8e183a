"""Rules of accessibility (WCAG, levels A and AA), checked in a browser by axe-core."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / ".clients/node/node_modules/axe-core/axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


def violations_of(page: Page) -> list[str]:
    """Return the rules that a page breaks, each with its first element; skips the test without axe-core."""
    if not AXE.exists():
        assert os.environ.get("LEYDEN_CLIENTS") != "required", "no axe-core: make clients"
        pytest.skip("no axe-core: make clients")
    page.evaluate(AXE.read_text())  # not as a script element: the pages forbid others' scripts
    found = page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
