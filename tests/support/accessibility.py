"""Rules of accessibility (WCAG, levels A and AA), checked in a browser by axe-core."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / ".clients/node/node_modules/axe-core/axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}

SIZES = {"page": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
"""Of a window on a desk and of a phone, in CSS pixels."""
_FADED_MS = 300
"""After which what fades or moves when colours or size change has its final colours."""


def violations_everywhere(page: Page) -> list[str]:
    """Return the rules that a page breaks in light or dark colours, on a desk or on a phone, and where it is too wide.

    The page has its first size and light colours afterwards.
    """
    first = page.viewport_size
    found: list[str] = []
    for size in SIZES.values():
        page.set_viewport_size(size)  # type: ignore[arg-type]
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(_FADED_MS)
            found += [f"{scheme}, {size['width']} pixels: {one}" for one in violations_of(page)]
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            found.append(f"{size['width']} pixels: the page is wider than the window")
    if first is not None:
        page.set_viewport_size(first)
    return found


def violations_of(page: Page) -> list[str]:
    """Return the rules that a page breaks, each with its first element; skips the test without axe-core."""
    if not AXE.exists():
        assert os.environ.get("LEYDEN_CLIENTS") != "required", "no axe-core: make clients"
        pytest.skip("no axe-core: make clients")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())  # not as a script element: the pages forbid others' scripts
    found = page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
