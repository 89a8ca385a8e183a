"""Padding of stream events, as the provider pads them. Knows nothing of dialects."""

import secrets

PIECE = 16
"""Characters that a piece and its padding have together, or a multiple of them."""


def padding(piece: str) -> str:
    """Return what makes a piece of a stream as long as its neighbours, to whoever counts bytes of encrypted lines.

    There is always some.
    """
    return secrets.token_hex(PIECE // 2)[: PIECE - len(piece) % PIECE]
