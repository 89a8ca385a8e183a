"""Images of prompts: the image files that the policy read, and the placeholder tokens that stand for them.

An image is identified by the SHA-256 of its file. The record of a call names the images of its prompt by this digest,
and the files themselves are recorded once for each attempt.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

import msgspec

FIRST_IMAGE_ID = 1 << 30
"""Ids from here on stand for tokens of images, where engine and trainer read a prompt; no vocabulary is so large.

Every image has ids of its own there. Prompts with different images therefore never have equal ids, although their
recorded placeholders are equal.
"""


class PromptImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a prompt."""

    digest: str
    """SHA-256 of the file, in hexadecimal."""
    data: bytes
    """The image file, as the agent sent it."""
    start: int
    """Index in the prompt of the first placeholder token."""
    tokens: int
    """Number of placeholder tokens, which follow each other."""


def digest_of(data: bytes) -> str:
    """Return the digest by which an image file is identified."""
    return sha256(data).hexdigest()


def pack_images(images: Sequence[PromptImage]) -> str:
    """Return the text with which a record names the images of its prompt."""
    return msgspec.json.encode([(image.digest, image.start, image.tokens) for image in images]).decode()


def unpack_images(packed: str, files: Mapping[str, bytes], prompt_length: int) -> tuple[PromptImage, ...]:
    """Return the images that `pack_images` named, with their files by digest.

    Raises ValueError for a text that `pack_images` did not write, and KeyError for a missing file.
    """
    try:
        named = msgspec.json.decode(packed, type=list[tuple[str, int, int]])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if not fit([(start, tokens) for _, start, tokens in named], prompt_length):
        raise ValueError("the images overlap, or do not fit into their prompt")
    return tuple(
        PromptImage(digest=digest, data=files[digest], start=start, tokens=tokens) for digest, start, tokens in named
    )


def fit(places: Iterable[tuple[int, int]], prompt_length: int) -> bool:
    """Return whether images at (start, tokens), in order, have tokens, do not overlap, and end within the prompt."""
    end = 0
    for start, tokens in places:
        if start < end or tokens < 1:
            return False
        end = start + tokens
    return end <= prompt_length
