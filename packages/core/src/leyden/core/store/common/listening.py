"""`ListeningThread`: a thread that waits for notifications from outside until it is stopped."""

import socket
import threading
from abc import ABC, abstractmethod


class ListeningThread(ABC):
    """Starts its thread in `__init__` and runs until `stop`.

    Subclasses set their attributes before they call `__init__`.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._stop_sender, self._stop_receiver = socket.socketpair()
        """A socket pair: `stop` writes to the first socket, and the thread reads the second beside its own sockets."""
        self._thread = threading.Thread(target=self._run, name="leyden-store-listen", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and return when it has ended."""
        self._stopping.set()
        self._stop_sender.send(b"x")
        self._thread.join()
        self._stop_sender.close()
        self._stop_receiver.close()

    @abstractmethod
    def _run(self) -> None:
        """Wait for notifications until `_stopping` is set."""
