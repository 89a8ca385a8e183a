"""Padding of stream events: hides the length of their text in an encrypted connection, as the provider does."""

import secrets

BLOCK = 16
"""The length of a piece with its padding is a multiple of this number of characters."""


def padding(piece: str) -> str:
    """Return random hexadecimal padding for a piece of text in a stream; 1 to `BLOCK` characters.

    An observer of the encrypted connection then cannot derive the length of the text from the number of bytes.
    """
    return secrets.token_hex(BLOCK // 2)[: BLOCK - len(piece) % BLOCK]
