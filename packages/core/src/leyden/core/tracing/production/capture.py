"""Production capture: opens an implicit rollout around an agent that runs for its users. All failures fail open.

The gateway opens the rollout and keeps the signing key. This process receives the token of one attempt. If anything is
wrong with the gateway, the agent runs as without this module, at most `BEGIN_SECONDS` later. Leyden's log reports the
reason once.
"""

import asyncio
import atexit
import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from threading import Thread
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from leyden.core.data import semconv
from leyden.core.data.plain.values import is_plain, plain
from leyden.core.data.production import CaptureBegin, CaptureBegun, CaptureEnd
from leyden.core.data.rollout import Task
from leyden.core.data.span import Span
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import OpenAttempt, current_attempt, is_outside, open_attempt
from leyden.core.tracing.production.span_sender import SpanSender, SpansRefused
from leyden.core.tracing.wire import routing, routing_decision

log = logging.getLogger("leyden.production")

BEGIN_SECONDS = 1.0
"""Longest wait of an agent for its rollout, and of the process's end for the ends of its rollouts."""
PAUSE_SECONDS = 30.0
"""Time after a failure in which the gateway is not called and agents do not wait."""
MODE, GATEWAY_URL, TOKEN = "LEYDEN_CAPTURE", "LEYDEN_GATEWAY_URL", "LEYDEN_CAPTURE_TOKEN"
"""Environment variables."""
_MAX_ANSWER = 65536
_REFUSED_STATUSES = (400, 404, 409, 413)
"""Statuses that concern only the one request."""

T = TypeVar("T")


class CaptureFailed(Exception):
    """The gateway did not answer as expected. The message is one line."""


class CaptureRefused(CaptureFailed):
    """The gateway refused this one request."""


def capture(
    task: Task = None,
    *,
    gateway: str | None = None,
    token: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> "Capture":
    """Open one implicit rollout around an agent's run, as a block: `with`, or `async with`.

    Without a `gateway` these environment variables apply: `LEYDEN_CAPTURE=production`, `LEYDEN_GATEWAY_URL` and
    `LEYDEN_CAPTURE_TOKEN`. Without the first one nothing is captured. Inside an attempt, of a runner or of another
    `capture`, no further rollout is opened. Never raises.
    """
    return Capture(task, gateway, token, metadata or {})


def root_agent(name: str) -> "Capture":
    """Return a `capture` around the root span of the agent `name`, for adapters. Only the environment enables it."""
    return Capture(None, None, None, {"agent": name})


class Capture:
    """The block of `capture`. Its value is the open attempt, or None where nothing is captured."""

    def __init__(self, task: Task, gateway: str | None, token: str | None, metadata: dict[str, Any]) -> None:
        self._begin = CaptureBegin(task=task, metadata=metadata)
        self._given = gateway, token
        self._gateway: _Gateway | None = None
        self._attempt: OpenAttempt | None = None
        self._sender: SpanSender | None = None
        self._open = ExitStack()

    def __enter__(self) -> OpenAttempt | None:
        try:
            begun = self._request_begin()
            if begun is not None:
                self._enter(_result(begun))
        except Exception as error:
            self._failed(error)
        return self._attempt

    async def __aenter__(self) -> OpenAttempt | None:
        try:
            begun = self._request_begin(in_loop=True)
            if begun is not None:
                self._enter(await asyncio.wait_for(asyncio.wrap_future(begun), BEGIN_SECONDS))
        except Exception as error:
            self._failed(error)
        return self._attempt

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None or self._gateway is None:
            return
        try:
            self._open.close()
        except Exception:  # left in another context than it was entered in
            log.debug("a capture was exited in another context than it was entered in", exc_info=True)
        attempt.closed.set()
        incomplete = routing_decision.WENT_TO_PROVIDER in attempt.extra
        end = CaptureEnd(failed=kind is not None, incomplete=incomplete)
        try:
            end_future = _in_thread(self._gateway.end, attempt.token, end, self._sender)
            _ending.add(end_future)
            end_future.add_done_callback(_ending.discard)
        except Exception as error:
            self._failed(error)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)

    def _request_begin(self, *, in_loop: bool = False) -> Future[CaptureBegun] | None:
        """Begin a rollout in the background. Returns None where none is wanted."""
        self._gateway = None
        if (
            current_attempt() is not None
            or is_outside()
            or (routing_decision.is_on() and routing_decision.fails_closed())
        ):
            return None
        gateway = _configured(*self._given)
        if gateway is None or time.monotonic() < gateway.paused_until:
            return None
        if in_loop:
            asyncio.get_running_loop()  # raises under another async library, before a rollout is begun in vain
        self._gateway = gateway
        return _in_thread(gateway.begin, self._begin, on_cancelled=gateway.give_up)

    def _enter(self, begun: CaptureBegun) -> None:
        assert self._gateway is not None
        attempt, self._sender = _open_attempt(
            rollout_id=begun.rollout_id,
            attempt_id=begun.attempt_id,
            token=begun.token,
            gateway_url=self._gateway.url,
            trace_id=secrets.token_hex(16),
        )
        context_propagation.install()
        routing.install()
        self._open.enter_context(open_attempt(attempt))
        self._attempt = attempt

    def _failed(self, error: Exception) -> None:
        if self._gateway is not None:
            self._gateway.failed(error)
        else:
            _log_failure("", str(error) or type(error).__name__)


def in_child(fields: dict[str, Any]) -> tuple[OpenAttempt, Callable[[], None]]:
    """Open a capture's attempt in a child process of the agent.

    Returns the attempt and a function that sends the spans of this process.
    """
    attempt, sender = _open_attempt(**fields)

    def send() -> None:
        if attempt.notes:
            wait([_in_thread(sender.finish)], BEGIN_SECONDS)

    return attempt, send


def _open_attempt(**fields: Any) -> tuple[OpenAttempt, SpanSender]:
    """Return an attempt that fails open, and the sender of its spans to its gateway."""
    notes: list[Span] = []
    gateway = _Gateway(fields["gateway_url"], "")
    sender = SpanSender(notes, lambda body: gateway.spans(fields["token"], body))
    settings: dict[str, Any] = {**fields, "fail_open": True, "notes": notes, "keep": sender.keep}
    return OpenAttempt(**settings), sender


def _request(begin: CaptureBegin) -> bytes:
    """Return the request for a rollout. The metadata lists what could not be kept completely."""
    if is_plain(begin.task) and is_plain(begin.metadata):
        return msgspec.msgpack.encode(begin)
    task, metadata = plain(begin.task, "input", all_fields=True), plain(begin.metadata, "metadata", all_fields=True)
    found: Any = metadata.value
    pairs = cast("dict[Any, Any]", found) if type(found) is dict else {"value": found}
    notes = {str(name): note for name, note in pairs.items()}
    if reasons := [*task.reasons, *metadata.reasons]:
        notes[semconv.REDUCED] = reasons
    return msgspec.msgpack.encode(CaptureBegin(task=task.value, metadata=notes))


@dataclass(slots=True)
class _Gateway:
    """State of one gateway in this process."""

    url: str
    capture_token: str = field(repr=False)
    paused_until: float = 0.0

    def begin(self, begin: CaptureBegin) -> CaptureBegun:
        """Open a rollout."""
        response = self._post("/capture/begin", self.capture_token, _request(begin))
        try:
            return msgspec.msgpack.decode(response, type=CaptureBegun)
        except msgspec.DecodeError as error:
            raise CaptureFailed(f"its answer cannot be read: {error}") from error

    def spans(self, token: str, body: bytes) -> None:
        """Store spans of the attempt that `token` identifies."""
        try:
            self._post("/capture/spans", token, body)
        except CaptureRefused as error:
            raise SpansRefused(str(error)) from error

    def end(self, token: str, end: CaptureEnd, sender: SpanSender | None = None) -> None:
        """End the attempt that `token` identifies, once `sender` has sent its spans."""
        try:
            if sender is not None and (lost := sender.finish()):
                end = msgspec.structs.replace(end, lost_spans=lost)
            self._post("/capture/end", token, msgspec.msgpack.encode(end))
        except Exception as error:
            _log_failure(self.url, f"the end of a rollout was not recorded ({_error_line(error)})")

    def give_up(self, begun: CaptureBegun) -> None:
        """End an attempt for which the agent did not wait."""
        self.end(begun.token, CaptureEnd(failed=True))

    def failed(self, error: Exception) -> None:
        """Log why nothing is captured. Pause calls to the gateway if the next request would fail too."""
        if not isinstance(error, CaptureRefused):
            self.paused_until = time.monotonic() + PAUSE_SECONDS
        _log_failure(self.url, _error_line(error))

    def _post(self, path: str, token: str, body: bytes) -> bytes:
        address = urlsplit(self.url)
        connect = HTTPSConnection if address.scheme == "https" else HTTPConnection
        connection = connect(address.hostname or "", address.port, timeout=BEGIN_SECONDS)
        headers = {"authorization": f"Bearer {token}", "content-type": "application/msgpack"}
        try:
            connection.request("POST", address.path + path, body, headers)
            response = connection.getresponse()
            if response.status != 200:
                kind = CaptureRefused if response.status in _REFUSED_STATUSES else CaptureFailed
                raise kind(f"it answered {response.status}")
            return response.read(_MAX_ANSWER)
        finally:
            connection.close()


_gateways: dict[tuple[str, str], _Gateway] = {}
_logged: set[tuple[str, str]] = set()
_ending: set[Future[None]] = set()
"""Ends that are being sent. The end of the process waits for them."""


def _configured(url: str | None, token: str | None) -> _Gateway | None:
    """Return the given or configured gateway. Raises CaptureFailed when its settings are incomplete."""
    if url is None:
        mode = os.environ.get(MODE, "")
        if mode and mode != "production":
            raise CaptureFailed(f"{MODE} is {mode!r}; it must be 'production'")
        if not mode:
            return None
    url = (url or os.environ.get(GATEWAY_URL, "")).rstrip("/")
    token = token or os.environ.get(TOKEN, "")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise CaptureFailed(f"{GATEWAY_URL} must be the root URL of a gateway, not {url!r}")
    if not token:
        raise CaptureFailed(f"the capture token is missing; set {TOKEN}")
    return _gateways.setdefault((url, token), _Gateway(url, token))


def _result(begun: Future[CaptureBegun]) -> CaptureBegun:
    try:
        return begun.result(BEGIN_SECONDS)
    except TimeoutError:
        begun.cancel()
        raise


def _in_thread(function: Callable[..., T], *args: Any, on_cancelled: Callable[[T], object] | None = None) -> Future[T]:
    """Run `function` in a daemon thread and return its future.

    A thread is needed because name resolution has no time limit.

    `on_cancelled` is called with the result when the future was cancelled.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            result = function(*args)
        except Exception as error:
            if done.set_running_or_notify_cancel():
                done.set_exception(error)
        else:
            if done.set_running_or_notify_cancel():
                done.set_result(result)
            elif on_cancelled is not None:
                on_cancelled(result)

    Thread(target=run, name="leyden capture", daemon=True).start()
    return done


def _error_line(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {BEGIN_SECONDS:g} s"
    return str(error) or type(error).__name__


def _log_failure(url: str, reason: str) -> None:
    """Log why nothing is captured, as a warning the first time."""
    level = logging.DEBUG if (url, reason) in _logged else logging.WARNING
    _logged.add((url, reason))
    log.log(level, "Not captured%s: %s", f" at {url}" if url else "", reason)


@atexit.register
def _wait_for_ends() -> None:
    wait(tuple(_ending), BEGIN_SECONDS)


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_ending.clear)  # the threads of these ends exist only in the parent
