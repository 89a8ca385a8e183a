"""Rules of WCAG 2.2, level AA, that a page breaks, by axe-core."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[3] / ".clients/node/node_modules/axe-core/axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


def need_axe() -> None:
    """Skip the test where axe-core is not installed, unless the clients are required."""
    if not AXE.exists():
        assert os.environ.get("LEYDEN_CLIENTS") != "required", "no axe-core: make clients"
        pytest.skip("no axe-core: make clients")


def broken_rules(page: Page) -> list[str]:
    """The rules that a page breaks, each with the first element that does."""
    page.evaluate(AXE.read_text())  # not as a script element: the pages forbid others' scripts
    found = page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
