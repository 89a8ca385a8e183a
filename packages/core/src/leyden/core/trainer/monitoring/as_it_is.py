"""Literal text for rich tables: text of agents and users is shown unchanged and cannot control the output."""

from typing import TYPE_CHECKING

from leyden.core.masking import printable

if TYPE_CHECKING:
    from rich.text import Text

TITLE, CAPTION = "table.title", "table.caption"
"""rich applies these styles to titles and captions given as strings; a `Text` needs them explicitly."""


def as_it_is(text: str, style: str = "") -> "Text":
    """Return `text` with secrets masked; rich interprets neither markup nor control characters in it."""
    from rich.text import Text

    return Text(printable(text), style=style)
