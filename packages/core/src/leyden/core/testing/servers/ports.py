"""`free_port`: a port for a server that cannot choose one itself."""

import socket


def free_port() -> int:
    """Return a port of this machine at which no server listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
