"""What every driver's fake model says, and when: at once, or, for a crowd of waiting agents, when it is let go.

Knows no framework.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

QUESTION = "What is twice 7?"
PROMPT = ("lorem ipsum dolor sit amet " * 160)[:4000] + QUESTION
"""About a thousand tokens, which is what instrumentors write down for a call."""
ANSWER = "It is 14, as you can easily see when you add seven to seven. " * 10
MODEL = "gpt-4.1-mini"
TOOL, ARGUMENTS = "double", {"number": 7}
TOKENS = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
CALLS = 2
"""Model calls of a rollout: the first calls the tool, the second answers."""

around: list[Callable[[], AbstractContextManager[object]]] = [nullcontext]
"""Its last entry is entered around every answer: where a bare span goes."""


class Gate:
    """Holds answers back while it is shut."""

    def __init__(self) -> None:
        self.waiting = 0
        self._open: asyncio.Event | None = None

    def shut(self) -> None:
        """Let no answer through."""
        self._open, self.waiting = asyncio.Event(), 0

    def let_go(self) -> None:
        """Let all through."""
        if self._open is not None:
            self._open.set()
        self._open = None

    async def passed(self) -> None:
        """Return when an answer may be given."""
        if self._open is not None:
            self.waiting += 1
            await self._open.wait()


gate = Gate()


def double(number: int) -> int:
    """Double a number."""
    return 2 * number
