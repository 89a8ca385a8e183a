"""`Runners`: where the agents' processes run, and how those of other machines reach the run. Starts none of them."""

import socket
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from leyden.core.data.bounds import check_bound
from leyden.core.data.encoding.base_url import check_hosts
from leyden.core.errors import UsageError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_EVERYWHERE = ("0.0.0.0", "::")


Where = Literal["local", "ray", "remote"]


class Runners(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults keep everything on this machine. Raises UsageError for what cannot work."""

    where: Where = "local"
    """`local`: processes of this machine. `ray`: on the nodes of a Ray cluster. `remote`: none are started; each
    `leyden run --server URL` brings its own."""
    ray_address: str | None = None
    """HOST:PORT of a cluster to join, or `auto` for the one that this machine is part of; None starts one here."""
    ray_actors: int | None = None
    """Actors that share the workers; None: one for each node, and no more than there are workers."""
    ray_cpus: float = 1.0
    """Processors that Ray sets aside for each worker."""
    host: str = "127.0.0.1"
    """Address that gateway and store listen on; 0.0.0.0 is every one of this machine."""
    port: int = 0
    """0 takes a free one."""
    advertise: str | None = None
    """What other machines know it by: HOST, HOST:PORT or a whole URL. None: the address that is listened on, or this
    machine's own where that is every one."""
    allow_hosts: tuple[str, ...] = ()
    """Further names that requests may call this machine by, in their Host header."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot work."""
        read_where(self.where)
        if self.where != "ray":
            given = {"ray-address": self.ray_address is not None, "ray-actors": self.ray_actors is not None}
            for name in [name for name, there in given.items() if there]:
                raise UsageError(f"{name} has no effect without runners ray")
        if self.ray_actors is not None:
            check_bound("ray_actors", self.ray_actors)
        check_bound("ray_cpus", self.ray_cpus)
        check_bound("port", self.port)
        if "://" in (self.ray_address or ""):
            raise UsageError(f"ray-address is HOST:PORT or auto, not {self.ray_address!r}")
        check_hosts(self.allow_hosts)
        if self.advertise is not None:
            self._advertised("http://127.0.0.1:1")

    @property
    def stays_here(self) -> bool:
        """Whether nobody outside this machine can reach the run."""
        return self.host in LOOPBACK and self.advertise is None

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The names that the server is given to answer for, besides its own."""
        advertised = None if self.advertise is None else urlsplit(self._advertised("http://127.0.0.1:1")).hostname
        return (*self.allow_hosts, *filter(None, [advertised]))

    def url(self, listening: str) -> str:
        """The root URL under which runners reach what listens at the URL `listening`."""
        if self.advertise is not None:
            return self._advertised(listening)
        if self.host in _EVERYWHERE:
            own = own_address()
            return f"http://{f'[{own}]' if ':' in own else own}:{urlsplit(listening).port}"
        return listening

    def _advertised(self, listening: str) -> str:
        given = (self.advertise or "").rstrip("/")
        whole = given if "://" in given else f"http://{given}"
        try:
            parts = urlsplit(whole)
            port = parts.port
        except ValueError:
            parts = port = None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
            raise UsageError(f"advertise is HOST, HOST:PORT or http(s)://HOST:PORT, not {self.advertise!r}")
        return whole if "://" in given or port is not None else f"{whole}:{urlsplit(listening).port}"


def read_where(value: str) -> Where:
    """Read where runners are; raises UsageError."""
    if value not in ("local", "ray", "remote"):
        raise UsageError(f"--runners is local, ray or remote, not {value!r}")
    return value


def own_address() -> str:
    """This machine's address towards others; its loopback address if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which way a packet would go
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
