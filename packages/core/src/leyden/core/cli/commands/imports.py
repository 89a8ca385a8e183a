"""`leyden import`: stores of other systems, read into a Leyden store."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.command import Command
from leyden.core.cli.options import JsonOption, QuietOption
from leyden.core.cli.progress import progress
from leyden.core.data.encoding.json_line import json_line
from leyden.core.masking import mask_text, printable

if TYPE_CHECKING:
    from leyden.core.trainer.imports.agent_lightning import Imported

app = typer.Typer(
    help="Stores of other systems, read into a Leyden store: agent-lightning.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def imports() -> None:
    """Read the store of another system into a Leyden store."""


@app.command("agent-lightning", cls=Command)
def agent_lightning(
    source: Annotated[
        str, typer.Argument(metavar="URL", help="Store server of Agent Lightning 0.3, such as http://127.0.0.1:4747.")
    ],
    *,
    to: Annotated[str, typer.Option("--to", metavar="URI", help="Leyden store to write to, such as sqlite:///it.db.")],
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Read rollouts, attempts, spans, rewards and resources of an Agent Lightning 0.3 store into a Leyden store.

    Run it again to continue after an interruption: nothing is written twice.
    """
    from leyden.core.trainer.event_loop import run_loop
    from leyden.core.trainer.imports.agent_lightning import import_agent_lightning

    found: list[Imported] = []

    async def work() -> None:
        with progress("rollouts", quiet=quiet or json) as on_progress:
            found.append(await import_agent_lightning(source, to, on_progress))

    run_loop(work())
    (imported,) = found
    if json:
        sys.stdout.write(json_line(imported))
    elif not quiet:
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines(imported, to))


def lines(imported: "Imported", to: str) -> list[str]:
    """Return the closing lines: what was written, and what is not as it was."""
    parts = {
        "rollouts": imported.rollouts,
        "attempts": imported.attempts,
        "spans": imported.spans,
        "rewards": imported.rewards,
        "model calls with messages": imported.calls,
        "resources": imported.resources,
    }
    counts = ", ".join(f"{count:,} {name}" for name, count in parts.items())
    found = [f"imported {counts} from {imported.source} into {mask_text(to)}"]
    if imported.there_already:
        found.append(f"there already: {imported.there_already:,} rollouts")
    if imported.unfinished:
        found.append(f"not ended in Agent Lightning: {imported.unfinished:,} rollouts; run the command again later")
    changed = "; ".join(f"{count:,} {name}" for name, count in imported.changed.items())
    found.append(f"not as it was: {changed}" if changed else "nothing was left out")
    return found
