"""`RedisLink`: one connection to Redis, which reconnects when the connection is lost.

A command may be sent again, because reads change nothing, and each commit has a number by which Redis recognises it.
"""

import random
import re
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from leyden.core.errors import StoreError, UsageError
from leyden.core.store.text import check_login

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds after a lost connection for which calls are repeated; later calls fail at once until a server answers."""
_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
_ANSWER_SECONDS, _CONNECT_SECONDS = 30.0, 3.0
"""Seconds without an answer, and seconds for connecting, after which the connection is given up."""
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHAPE = "redis://HOST:PORT/NUMBER?namespace=NAME, with USER:PASSWORD@ before the host if Redis wants them"


class RedisConnection(Protocol):
    """The methods of a redis-py connection that are used."""

    def connect(self) -> None:
        """Connect, log in and select the database."""
        ...

    def disconnect(self) -> None:
        """Close the socket."""
        ...

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = ...) -> None:
        """Send packed commands."""
        ...

    def can_read(self, timeout: float = ...) -> bool:
        """Whether an answer, or the end of the connection, arrives within so many seconds."""
        ...

    def read_response(self, disable_decoding: bool = ..., timeout: float = ...) -> Any:
        """Return the answer; raises it where it is an error."""
        ...


@dataclass(frozen=True)
class RedisAddress:
    """Redis server, database and namespace of a store; its text never contains a password."""

    text: str
    """Text for messages."""
    make: Callable[[], RedisConnection] = field(repr=False, compare=False)
    namespace: str = "default"
    database: int = 0
    allows_loss: bool = False
    """Whether a Redis that may lose acknowledged data is accepted."""

    def __str__(self) -> str:
        return self.text


def address_of(uri: str) -> RedisAddress:
    """Return the address in `uri`; raises UsageError without its password."""
    check_login(uri)
    try:
        parts = urlsplit(uri)
        port = parts.port
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # its text may contain a password
        raise UsageError(f"the URI of the Redis store cannot be read; use {_SHAPE}") from None
    is_socket = parts.scheme == "redis+unix"
    number = given.pop("db", "0") if is_socket else parts.path.strip("/") or "0"
    namespace, loss = given.pop("namespace", "default"), given.pop("volatile", "refuse")
    for name in given:
        raise UsageError(f"{name!r} is not an option of a Redis store; use namespace or volatile")
    if loss not in ("allow", "refuse"):
        raise UsageError(f"volatile is {loss!r}; it must be allow or refuse")
    if not _NAMESPACE.fullmatch(namespace):
        raise UsageError(f"the namespace {namespace!r} is not a name; use up to 64 letters, digits, dots and dashes")
    if not number.isdecimal():
        raise UsageError(f"the database {number!r} of the Redis store is not a number; use {_SHAPE}")
    where = unquote(parts.path) if is_socket else f"{parts.hostname or 'localhost'}:{port or 6379}"
    login = {
        name: unquote(value) for name, value in (("username", parts.username), ("password", parts.password)) if value
    }
    kind, target = Connection, {"host": parts.hostname or "localhost", "port": port or 6379}
    if is_socket:
        kind, target = UnixDomainSocketConnection, {"path": where}
    elif parts.scheme == "rediss":
        kind = SSLConnection
    make: Any = kind
    text = f"{parts.scheme}://{where}" + (f"?db={number}" if is_socket else f"/{number}")
    return RedisAddress(
        text=text,
        make=lambda: cast("RedisConnection", make(**target, **login, db=int(number), **_SETTINGS)),
        namespace=namespace,
        database=int(number),
        allows_loss=loss == "allow",
    )


_SETTINGS: dict[str, Any] = {
    "protocol": 2,
    "socket_timeout": _ANSWER_SECONDS,
    "socket_connect_timeout": _CONNECT_SECONDS,
    "retry": Retry(NoBackoff(), 0),
    "driver_info": None,
}


class Outage:
    """Time since which a store's connections are lost; shared by them, so that callers do not wait one by one."""

    def __init__(self, patience: float = PATIENCE) -> None:
        """Let calls be repeated for `patience` seconds."""
        self._patience = patience
        self._lock = threading.Lock()
        self._since: float | None = None

    def lost(self) -> bool:
        """Record that a connection was lost; return whether to try again."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
            return time.monotonic() < self._since + self._patience

    def answered(self) -> None:
        """Record that a server has answered."""
        self._since = None


class RedisLink:
    """A connection for one thread at a time. Raises StoreError when Redis is unreachable or returns an error."""

    def __init__(self, address: RedisAddress, outage: Outage, closing: threading.Event) -> None:
        self._address, self._outage, self._closing = address, outage, closing
        self._connection: RedisConnection | None = None
        self._scripts: dict[str, str] = {}

    def call(self, *arguments: bytes | str) -> Any:
        """Send a command and return the answer; repeated after a lost connection."""
        return self._with_retries(lambda: self.call_once(*arguments))

    def run(self, script: str, *arguments: bytes | str) -> Any:
        """Run a script and return the answer; repeated after a lost connection."""
        return self._with_retries(lambda: self._run_once(script, arguments))

    def run_behind(self, ahead: Sequence[Sequence[bytes | str]], script: str, *arguments: bytes | str) -> Any:
        """Run a script like `run`, in one transaction with the commands `ahead` of it.

        The script's whole text is sent. With its hash only, a Redis without the script would run the other commands
        alone.
        """
        commands = [("MULTI",), *ahead, ("EVAL", script, "0", *arguments), ("EXEC",)]
        return self._with_retries(lambda: _last(self._exchange(*commands)))

    def load(self, *scripts: str) -> None:
        """Load scripts into Redis."""
        for script in scripts:
            self._scripts[script] = self.call("SCRIPT", "LOAD", script).decode()

    def run_soon(self, seconds: float, script: str, *arguments: bytes | str) -> Any | None:
        """Run a loaded script; return None where no answer arrives within `seconds`."""
        if self._connection is None or script not in self._scripts:
            return None
        try:
            command = packed(("EVALSHA", self._scripts[script], "0", *arguments))
            self._connection.send_packed_command([command], check_health=False)
            if self._connection.can_read(seconds):
                return self._connection.read_response()
        except (RedisError, OSError):
            pass
        self.drop()  # an answer may still arrive
        return None

    def call_once(self, *arguments: bytes | str) -> Any:
        """Send a command and return the answer; raises the driver's own errors."""
        return self._exchange(arguments)

    def call_connected(self, *arguments: bytes | str) -> Any | None:
        """Send a command over the present connection; return None where that is lost.

        An answer thus comes from the Redis that answered before, and not from one that was started since.
        """
        if self._connection is None:
            return None
        try:
            return self._exchange(arguments)
        except (ConnectionError, TimeoutError, OSError):
            self.drop()
            return None
        except RedisError as error:
            self.drop()
            raise StoreError(f"{self._address}: {error}") from error

    def _exchange(self, *commands: Sequence[bytes | str]) -> Any:
        """Send commands together and return the last one's answer; raises the first error among all answers."""
        if self._connection is None:
            connection = self._address.make()
            connection.connect()
            self._connection = connection
        self._connection.send_packed_command([packed(*commands)], check_health=False)
        for _ in commands[1:]:
            self._connection.read_response()
        return self._connection.read_response()

    def _run_once(self, script: str, arguments: Sequence[bytes | str]) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self.call_once("SCRIPT", "LOAD", script).decode()
        try:
            return self.call_once("EVALSHA", self._scripts[script], "0", *arguments)
        except NoScriptError:  # another server, or the same one after a restart
            self.call_once("SCRIPT", "LOAD", script)
            return self.call_once("EVALSHA", self._scripts[script], "0", *arguments)

    def _with_retries(self, work: Callable[[], T]) -> T:
        pause = _PAUSE
        while True:
            try:
                found = work()
            except (ConnectionError, TimeoutError, OSError) as error:
                self.drop()
                if isinstance(error, AuthenticationError) or not self._outage.lost() or self._closing.wait(pause):
                    raise StoreError(f"{self._address}: {error}; is Redis running there?") from error
                pause = min(pause * (1 + random.random()), _LONGEST_PAUSE)
            except RedisError as error:
                self.drop()
                raise StoreError(f"{self._address}: {str(error).partition('. script: ')[0]}") from error
            except BaseException:
                self.drop()  # an answer may still arrive
                raise
            else:
                self._outage.answered()
                return found

    def drop(self) -> None:
        """Close the connection; the next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


@contextmanager
def closed_on_failure(close: Callable[[], None]) -> Generator[None]:
    """Close a connection when the block raises, since garbage collection would close it late."""
    try:
        yield
    except BaseException:
        close()
        raise


def _last(answers: Sequence[Any]) -> Any:
    """Return the last answer of a transaction; raises it where it is an error."""
    if isinstance(answers[-1], Exception):
        raise answers[-1]
    return answers[-1]


def packed(*commands: Sequence[bytes | str]) -> bytes:
    """Return commands in Redis's protocol."""
    parts: list[bytes] = []
    for arguments in commands:
        parts.append(b"*%d\r\n" % len(arguments))
        for argument in arguments:
            value = argument.encode() if isinstance(argument, str) else argument
            parts += (b"$%d\r\n" % len(value), value, b"\r\n")
    return b"".join(parts)


def connected(address: RedisAddress) -> RedisLink:
    """Return a connected link; raises UsageError with the reason where that fails."""
    link = RedisLink(address, Outage(), threading.Event())
    try:
        with closed_on_failure(link.drop):
            link.call_once("PING")
    except AuthenticationError as error:
        raise UsageError(
            f"{address} refuses the login; the URI's user or password is wrong or missing: {error}"
        ) from error
    except ResponseError as error:
        raise UsageError(f"{address} refuses: {error}") from error
    except (RedisError, OSError) as error:
        tls = "; rediss:// needs a Redis that listens with TLS" if address.text.startswith("rediss:") else ""
        raise UsageError(f"cannot reach Redis at {address}: {error}{tls}") from error
    return link
