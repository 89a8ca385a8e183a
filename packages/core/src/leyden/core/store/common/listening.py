"""`ListeningThread`: waits on a thread of its own until it is told something, or to stop. Knows nothing of stores."""

import socket
import threading
from abc import ABC, abstractmethod


class ListeningThread(ABC):
    """Runs from the moment it is made until `stop`; whatever it needs must be there before it is."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._ours, self._theirs = socket.socketpair()
        """What is sent by the first can be read from the second: whoever waits for news there hears of the end too."""
        self._thread = threading.Thread(target=self._run, name="leyden-store-listen", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when it has."""
        self._stopping.set()
        self._ours.send(b"x")
        self._thread.join()
        self._ours.close()
        self._theirs.close()

    @abstractmethod
    def _run(self) -> None:
        """Listen, until `_stopping` is set."""
