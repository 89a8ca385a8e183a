"""Options of commands that use a server of runs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.server.client import LightningClient

ServerOption = Annotated[
    str | None, typer.Option("--server", metavar="URL", envvar="LEYDEN_SERVER", help="Root URL of the server.")
]
RunMemoryOption = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="With --server: memory of all processes of the run. [default: 4GiB]"),
]
RunCoresOption = Annotated[
    int | None, typer.Option("--cores", help="With --server: processor cores of the run. [default: 1]")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Send the server's token over plain HTTP to another machine.")
]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """A server, the budget of a run there, and whether the command returns at once."""

    url: str | None
    memory: str | None = None
    cores: int | None = None
    detach: bool = False
    insecure: bool = False

    def client(self) -> "LightningClient":
        """Return a client of the server, with the token in LEYDEN_SERVER_TOKEN. Raises UsageError without a URL."""
        from leyden.core.server.budget import read_size
        from leyden.core.server.client import LightningClient

        if self.url is None:
            raise UsageError("give --server URL, or set LEYDEN_SERVER to it")
        if self.memory is not None:
            read_size(self.memory)
        return LightningClient(self.url, insecure=self.insecure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a command prints."""

    quiet: bool = False
    json: bool = False
