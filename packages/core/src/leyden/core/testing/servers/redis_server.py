"""`RedisServer`: a real Redis server on a socket in a temporary folder, which a test can kill and restart.

`server_programs` finds the Redis program. `PROGRAM` is None where there is none; `NO_REDIS` is then the message.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from leyden.core.testing.servers.ports import free_port
from leyden.core.testing.servers.server_programs import NO_REDIS, redis_program

PROGRAM = redis_program()
__all__ = ["DURABLE", "NO_REDIS", "PROGRAM", "RedisServer"]
DURABLE = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
"""Settings with which a store accepts a Redis server."""
_START_SECONDS = 20.0


class RedisServer:
    """Use it as `with RedisServer() as server:`; its data are removed at the end.

    `settings` override those of `DURABLE`. With `has_port`, it also listens on a free loopback port.
    """

    def __init__(self, settings: dict[str, str] | None = None, *, has_port: bool = False) -> None:
        self._settings = {**DURABLE, **(settings or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="leyden-redis-"))
        self.port = free_port() if has_port else 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def uri(self, namespace: str = "default") -> str:
        """Return the URI of a store over the socket."""
        return f"redis+unix://{self._folder}/socket?namespace={namespace}"

    def tcp_uri(self, login: str = "", options: str = "") -> str:
        """Return the URI of a store over the port; `login` is like `:password@`."""
        return f"redis://{login}127.0.0.1:{self.port}/0{options}"

    def start(self) -> None:
        """Start the server, and wait until it has loaded its data."""
        settings = {"dir": str(self._folder), "port": str(self.port), "unixsocket": f"{self._folder}/socket"}
        options = [part for name, value in {**settings, **self._settings}.items() for part in (f"--{name}", value)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(PROGRAM or "redis-server"), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        give_up = time.monotonic() + _START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"Redis did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def answers(self) -> bool:
        """Whether it answers commands, or requests a password."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(f"{self._folder}/socket")
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the server, without a chance to write its data."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server in an orderly way."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()
