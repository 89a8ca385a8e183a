"""Text for tables of rich: what agents and users have written is shown as it is, and steers nothing."""

from typing import TYPE_CHECKING

from leyden.core.masking import mask_text, visible

if TYPE_CHECKING:
    from rich.text import Text

TITLE, CAPTION = "table.title", "table.caption"
"""Styles that rich gives to a text of its own kind only where it is told."""


def as_it_is(text: str, style: str = "") -> "Text":
    """Return `text` without secrets; neither markup, which may be broken, nor control characters in it are obeyed."""
    from rich.text import Text

    return Text(visible(mask_text(text)), style=style)
