"""Message tracking: groups what a message to an agent of AutoGen's core causes into one run.

This module uses no AutoGen classes. A runtime delivers messages in its own tasks, outside the sender's context. So the
sender's context is kept until delivery, and the handler runs in it. A message from outside begins an `Exchange`: a
workflow, and in production a rollout, that ends with the last message it led to.
"""

import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

from leyden.autogen._steps import Place, Step, begin_step, end_step, go, here, innermost
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import Run

WAITING_LIMIT = 4096
"""Number of sent, undelivered messages above which the oldest are forgotten."""

_EXCHANGE: ContextVar["Exchange | None"] = ContextVar("leyden_autogen_exchange", default=None)


class Exchange:
    """A message from outside, and all messages that follow from it."""

    def __init__(self, step: Step, begin: Callable[[Run], None]) -> None:
        self.step = step
        step.outer = innermost()
        self.first = ""
        """Id of the message that began it."""
        self._left = 0
        self._context = copy_context()  # the sender of the message continues outside the exchange
        self.place: Place = self._context.run(self._begun, begin)
        """Context in which its messages are handled."""

    def add(self) -> None:
        """Record that a message of it was sent."""
        self._left += 1

    def done(self) -> None:
        """Record that a message of it was handled or dropped; the last one ends the exchange."""
        self._left -= 1
        if self._left == 0:
            self._context.run(end_step, self.step)

    def _begun(self, begin: Callable[[Run], None]) -> Place:
        begin_step(self.step, begin)
        _EXCHANGE.set(self)
        return here()


@dataclass(slots=True, eq=False)
class Sent:
    """A message that was sent and not handled."""

    place: Place
    exchange: Exchange | None
    is_first: bool = False
    _left: bool = True

    @quietly
    def handled(self) -> None:
        """Record that the message is finished; repeated calls count once."""
        left, self._left = self._left, False
        if left and self.exchange is not None:
            self.exchange.done()

    def failed(self, error: BaseException) -> None:
        """Set the error of the exchange."""
        if self.exchange is not None:
            self.exchange.step.failure = error


_waiting: OrderedDict[str, deque[Sent]] = OrderedDict()
"""By message id, which a sender may give to several messages."""


def send(token: Any, message_id: str | None, exchange: Callable[[], Exchange] | None) -> tuple[Sent, str]:
    """Record that a message is sent from here, and return it with its id, created if there is none.

    `make_exchange` begins one where the message is from outside. `token` lives as long as the message can be delivered.
    """
    known, is_first = _EXCHANGE.get(), False
    if known is not None and known.step.ended:
        known = None
    if known is None and exchange is not None:
        known, is_first = exchange(), True
    sent = Sent(known.place if is_first and known is not None else here(), known, is_first)
    if known is not None:
        known.add()
    message_id = message_id or str(uuid.uuid4())
    if is_first and known is not None:
        known.first = message_id
    _waiting.setdefault(message_id, deque()).append(sent)
    if len(_waiting) > WAITING_LIMIT:
        _waiting.popitem(last=False)
    weakref.finalize(token, sent.handled).atexit = False
    return sent, message_id


@quietly
def handler_failed(error: BaseException, message_id: str, *, is_awaited: bool) -> None:
    """Fail the exchange with a handler's `error`, unless another agent awaits it and may recover."""
    exchange = _EXCHANGE.get()
    if exchange is not None and (not is_awaited or message_id == exchange.first):
        exchange.step.failure = error


def deliver(message_id: str) -> Sent | None:
    """Enter the sender's context of a message, and return the message; None for one that is not known."""
    messages = _waiting.get(message_id)
    if not messages:
        return None
    sent = messages.popleft()
    if not messages:
        del _waiting[message_id]
    if sent.exchange is not None or innermost() is None:
        go(sent.place)
        _EXCHANGE.set(sent.exchange)
    return sent
