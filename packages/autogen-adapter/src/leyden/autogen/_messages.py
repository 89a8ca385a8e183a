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

from leyden.autogen._steps import Step, StepState, begin_step, current_state, end_step, innermost, set_state
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import Run

UNDELIVERED_LIMIT = 4096
"""Number of sent, undelivered messages above which the oldest are forgotten."""

_EXCHANGE: ContextVar["Exchange | None"] = ContextVar("leyden_autogen_exchange", default=None)


class Exchange:
    """A message from outside, and all messages that follow from it."""

    def __init__(self, step: Step, begin: Callable[[Run], None]) -> None:
        self.step = step
        step.outer = innermost()
        self.first_id = ""
        """Id of the message that began it."""
        self._unfinished = 0
        self._context = copy_context()  # the sender of the message continues outside the exchange
        self.state: StepState = self._context.run(self._begin, begin)
        """Context in which its messages are handled."""

    def add(self) -> None:
        """Record that a message of it was sent."""
        self._unfinished += 1

    def finish_message(self) -> None:
        """Record that a message of it was handled or dropped; the last one ends the exchange."""
        self._unfinished -= 1
        if self._unfinished == 0:
            self._context.run(end_step, self.step)

    def _begin(self, begin: Callable[[Run], None]) -> StepState:
        begin_step(self.step, begin)
        _EXCHANGE.set(self)
        return current_state()


@dataclass(slots=True, eq=False)
class SentMessage:
    """A message that was sent and not handled."""

    state: StepState
    exchange: Exchange | None
    is_first: bool = False
    _pending: bool = True

    @quietly
    def finish(self) -> None:
        """Record that the message is finished; repeated calls count once."""
        pending, self._pending = self._pending, False
        if pending and self.exchange is not None:
            self.exchange.finish_message()

    def fail(self, error: BaseException) -> None:
        """Set the error of the exchange."""
        if self.exchange is not None:
            self.exchange.step.failure = error


_undelivered: OrderedDict[str, deque[SentMessage]] = OrderedDict()
"""By message id, which a sender may give to several messages."""


def send(token: Any, message_id: str | None, make_exchange: Callable[[], Exchange] | None) -> tuple[SentMessage, str]:
    """Record that a message is sent from here, and return it with its id, created if there is none.

    `make_exchange` begins one where the message is from outside. `token` lives as long as the message can be delivered.
    """
    exchange, is_first = _EXCHANGE.get(), False
    if exchange is not None and exchange.step.ended:
        exchange = None
    if exchange is None and make_exchange is not None:
        exchange, is_first = make_exchange(), True
    sent = SentMessage(exchange.state if is_first and exchange is not None else current_state(), exchange, is_first)
    if exchange is not None:
        exchange.add()
    message_id = message_id or str(uuid.uuid4())
    if is_first and exchange is not None:
        exchange.first_id = message_id
    _undelivered.setdefault(message_id, deque()).append(sent)
    if len(_undelivered) > UNDELIVERED_LIMIT:
        _undelivered.popitem(last=False)
    weakref.finalize(token, sent.finish).atexit = False
    return sent, message_id


@quietly
def handler_failed(error: BaseException, message_id: str, *, is_awaited: bool) -> None:
    """Fail the exchange with a handler's `error`, unless another agent awaits it and may recover."""
    exchange = _EXCHANGE.get()
    if exchange is not None and (not is_awaited or message_id == exchange.first_id):
        exchange.step.failure = error


def deliver(message_id: str) -> SentMessage | None:
    """Enter the sender's context of a message, and return the message; None for one that is not known."""
    messages = _undelivered.get(message_id)
    if not messages:
        return None
    sent = messages.popleft()
    if not messages:
        del _undelivered[message_id]
    if sent.exchange is not None or innermost() is None:
        set_state(sent.state)
        _EXCHANGE.set(sent.exchange)
    return sent
