"""Pages of a browser whose errors are collected."""

from playwright.sync_api import Browser, Page, ViewportSize

SIZE: ViewportSize = {"width": 1280, "height": 900}
"""Of a window on a desk, in CSS pixels."""


def new_page(browser: Browser, *, messages: bool = True) -> tuple[Page, list[str]]:
    """Return a new page, and the list of its errors, see `errors_of`."""
    page = browser.new_page(viewport=SIZE)
    return page, errors_of(page, messages=messages)


def errors_of(page: Page, *, messages: bool = True) -> list[str]:
    """Return the list to which exceptions that nothing caught are added, and error messages of the page's console.

    A request that is refused is such a message. Without `messages`, the list has exceptions alone.
    """
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    if messages:
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    return errors
