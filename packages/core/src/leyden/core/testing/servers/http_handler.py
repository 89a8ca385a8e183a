"""`served`: runs an HTTP handler on this machine for the length of a block."""

import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Server(ThreadingHTTPServer):
    """Ends its clients' connections when it is closed, and waits for their threads."""

    daemon_threads = False

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Record the new connection."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Remove the ended connection."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Close the server and all connections, since a kept-alive connection would keep its thread."""
        with self._lock:
            for request in self._open:
                with suppress(OSError):  # the client has closed it
                    request.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a handler's error, unless its client disconnected."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """Serve on a free loopback port inside the block; yields the root URL, without a trailing slash."""
    server = _Server(handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
