"""Images in chat messages: finds the parts of a conversation that hold images, and replaces what they hold.

All dialects pass an image on as a part of Chat Completions: `{"type": "image_url", "image_url": {"url": ...}}`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from leyden.core.gateway.codec import Message

IMAGE = "image_url"
ROLES = ("user", "tool")
"""Roles whose messages may have images."""
_SHOWN = 40


def image_part(url: str, **more: object) -> dict[str, Any]:
    """Return the part of a message that holds the image at `url`."""
    return {"type": IMAGE, IMAGE: {"url": url, **more}}


def image_urls(messages: Sequence[Message]) -> list[str]:
    """Return the URLs of all images of a conversation, in order."""
    return [part[IMAGE]["url"] for message in messages for part in _parts(message) if part.get("type") == IMAGE]


def with_urls(messages: Sequence[Message], urls: Sequence[str]) -> list[Message]:
    """Return a conversation whose images have these URLs, in order."""
    left = iter(urls)
    return [{**message, "content": _with_urls(message, left)} if _parts(message) else message for message in messages]


def shortened_url(url: str) -> str:
    """Return the beginning of an image's URL, for records and messages."""
    return url if len(url) <= _SHOWN else f"{url[:_SHOWN]}… ({len(url)} characters)"


def _with_urls(message: Message, left: Iterator[str]) -> list[dict[str, Any]]:
    return [
        {**part, IMAGE: {**part[IMAGE], "url": next(left)}} if part.get("type") == IMAGE else part
        for part in _parts(message)
    ]


def _parts(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message's content; empty for a text."""
    content: object = message.get("content")
    return cast("list[dict[str, Any]]", content) if isinstance(content, list) else []
