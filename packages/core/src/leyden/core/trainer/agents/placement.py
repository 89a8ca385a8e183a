"""Placement of runners: where agent processes run, and the URL under which other machines reach the run."""

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


class RunnerPlacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where agent processes run. The defaults keep everything on this machine."""

    where: Where = "local"
    """`local`: processes of this machine. `ray`: on the nodes of a Ray cluster. `remote`: none are started; each
    `leyden run --server URL` brings its own workers."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster to join, or `auto` for the cluster of this machine; None starts a cluster here."""
    ray_actors: int | None = None
    """Number of actors that share the workers. None: one for each node, but at most one for each worker."""
    ray_cpus: float = 1.0
    """Number of CPUs that Ray reserves for each worker."""
    host: str = "127.0.0.1"
    """Address that gateway and store listen on; 0.0.0.0 means all addresses of this machine."""
    port: int = 0
    """Port to listen on; 0 chooses a free port."""
    advertise: str | None = None
    """HOST, HOST:PORT or URL under which other machines reach this one. None: the address listened on, or this
    machine's own address if it listens on all."""
    allow_hosts: tuple[str, ...] = ()
    """Further host names of this machine that are accepted in the Host header of requests."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot work."""
        read_where(self.where)
        if self.where != "ray":
            given = {"ray-address": self.ray_address is not None, "ray-actors": self.ray_actors is not None}
            for name in [name for name, is_given in given.items() if is_given]:
                raise UsageError(f"{name} has no effect without runners ray")
        if self.ray_actors is not None:
            check_bound("ray_actors", self.ray_actors)
        check_bound("ray_cpus", self.ray_cpus)
        check_bound("port", self.port)
        if "://" in (self.ray_address or ""):
            raise UsageError(f"ray-address must be HOST:PORT or auto, not {self.ray_address!r}")
        check_hosts(self.allow_hosts)
        if self.advertise is not None:
            self._advertised("http://127.0.0.1:1")

    @property
    def stays_here(self) -> bool:
        """Whether only this machine can reach the run."""
        return self.host in LOOPBACK and self.advertise is None

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Host names that the server accepts besides its own."""
        advertised = None if self.advertise is None else urlsplit(self._advertised("http://127.0.0.1:1")).hostname
        return (*self.allow_hosts, *filter(None, [advertised]))

    def url(self, listening: str) -> str:
        """Return the root URL under which runners reach a server that listens at the URL `listening`."""
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
            raise UsageError(f"advertise must be HOST, HOST:PORT or http(s)://HOST:PORT, not {self.advertise!r}")
        return whole if "://" in given or port is not None else f"{whole}:{urlsplit(listening).port}"


def read_where(value: str) -> Where:
    """Return `value` as a `Where`; raises UsageError for an unknown place."""
    if value not in ("local", "ray", "remote"):
        raise UsageError(f"--runners must be local, ray or remote, not {value!r}")
    return value


def check_workers(least: int, most: int | None) -> None:
    """Raise UsageError for a largest number of workers that is below the smallest."""
    if most is not None and most < least:
        raise UsageError(f"max-workers {most} is below workers {least}; workers is the smallest number of processes")


def own_address() -> str:
    """Return this machine's address for other machines; its loopback address if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends no packet: it only selects the network interface of the route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
