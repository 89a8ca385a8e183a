"""Following a run of a server: prints what the run prints, until it has ended."""

import sys
from typing import TYPE_CHECKING

import msgspec

from leyden.core.cli.server_options import Shown
from leyden.core.data.encoding.json_line import json_line
from leyden.core.errors import LeydenError
from leyden.core.masking import printable

if TYPE_CHECKING:
    from leyden.core.server.client import RunHandle
    from leyden.core.server.status import RunStatus


def follow(handle: "RunHandle", url: str | None, shown: Shown, *, since: int = 0, everything: bool = False) -> None:
    """Print what a run prints until it has ended; with `everything`, also what it has printed before.

    Ctrl-C only ends the command: the run goes on. Raises LeydenError for a run that is not finished when it ends.
    """
    status: RunStatus | None = None
    output = None if shown.json or shown.quiet else 0 if everything else handle.output_size()
    try:
        for news in handle.watch(output=output, step=since if shown.json else None):
            if shown.json:
                for line in news.metrics:
                    sys.stdout.write(json_line({"event": "step", **line}))
            elif not shown.quiet:
                if (status is None or status.state != news.status.state) and not news.status.has_ended:
                    sys.stderr.write(f"{printable(news.status.line())}\n")
                sys.stdout.write("".join(f"{printable(line)}\n" for line in news.output.splitlines()))
            sys.stdout.flush()
            status = news.status
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{handle.name} goes on; {commands(handle.name, url)}\n")
        raise
    assert status is not None
    if shown.json:
        sys.stdout.write(json_line({"event": "status", **msgspec.to_builtins(status)}))
    elif not shown.quiet and status.state == "finished":
        sys.stdout.write(f"{printable(status.line())}\n")
    if status.state != "finished":
        where = f"{handle.name} --server {url}"
        again = "" if status.step else f"; to begin anew, remove it first: leyden runs remove {where}"
        raise LeydenError(f"{status.line()}; continue with: leyden runs resume {where}{again}")


def started(handle: "RunHandle", status: "RunStatus", url: str | None, shown: Shown) -> None:
    """Print that a run was submitted, and how it is followed."""
    if shown.json:
        sys.stdout.write(json_line({"event": "status", **msgspec.to_builtins(status)}))
    elif not shown.quiet:
        sys.stdout.write(f"{printable(status.line())}\n{commands(handle.name, url)}\n")


def commands(name: str, url: str | None) -> str:
    """Return the commands that follow and stop a run."""
    follow, stop = (f"leyden runs {what} {name} --server {url}" for what in ("follow", "stop"))
    return f"follow it with: {follow}, stop it with: {stop}"
