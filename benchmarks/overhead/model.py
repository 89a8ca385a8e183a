"""What every driver's fake model says, and when: at once, or, for a crowd of waiting agents, when it is let go.

Knows no framework.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

QUESTION = "What is twice 7?"
PROMPT = ("lorem ipsum dolor sit amet " * 160)[:4000] + QUESTION
"""About a thousand tokens, which is what instrumentors write down for a call."""
ANSWER = "It is 14, as you can easily see when you add seven to seven. " * 10
MODEL = "gpt-4.1-mini"
TOOL, ARGUMENTS = "double", {"number": 7}
ARGUMENTS_TEXT = json.dumps(ARGUMENTS)
TOKENS = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
CALLS = 2
"""Model calls of a rollout: the first calls the tool, the second answers."""
CROWD = 64
"""Rollouts that wait for their model at once while memory is looked at."""

around: list[Callable[[], AbstractContextManager[object]]] = [nullcontext]
"""Its last entry is entered around every answer: where a bare span goes."""


class Gate:
    """Holds answers back while it is shut."""

    def __init__(self) -> None:
        self.waiting = 0
        self._open: asyncio.Event | None = None
        self._open_to_threads = threading.Event()
        self._open_to_threads.set()
        self._counting = threading.Lock()

    def shut(self) -> None:
        """Let no answer through."""
        self._open, self.waiting = asyncio.Event(), 0
        self._open_to_threads.clear()

    def let_go(self) -> None:
        """Let all through."""
        if self._open is not None:
            self._open.set()
        self._open = None
        self._open_to_threads.set()

    async def passed(self) -> None:
        """Return when an answer may be given."""
        if self._open is not None:
            self.waiting += 1
            await self._open.wait()

    def passed_in_thread(self) -> None:
        """Return when an answer may be given, to one who blocks a thread of its own."""
        if not self._open_to_threads.is_set():
            with self._counting:
                self.waiting += 1
            self._open_to_threads.wait()


gate = Gate()


def double(number: int) -> int:
    """Double a number."""
    return 2 * number
