"""Padding of stream events: hides the length of their text in an encrypted connection, as the provider does."""

import random

BLOCK = 16
"""The length of a piece with its padding is a multiple of this number of characters."""
_random = random.Random()
"""Only the length of the padding hides something, so its characters need not be unpredictable."""


def padding(piece: str) -> str:
    """Return random hexadecimal padding for a piece of text in a stream; 1 to `BLOCK` characters.

    An observer of the encrypted connection then cannot derive the length of the text from the number of bytes.
    """
    length = BLOCK - len(piece) % BLOCK
    return f"{_random.getrandbits(4 * length):0{length}x}"
