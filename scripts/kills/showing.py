"""What a campaign found, for people to read: a table of what happened, then what is wrong. Knows no campaign."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

Findings: TypeAlias = tuple[dict[str, Any], dict[str, list[str]]]
"""What happened, and what is wrong by its kind."""
SHOWN = 20
"""Wrong things that are printed, of each kind."""
LONGEST = 2000
"""Characters of each."""


def show(console: Console, title: str, happened: Mapping[str, Any], wrong: Mapping[str, list[str]]) -> None:
    """Print the table, and below it what is wrong."""
    table = Table(title=title)
    table.add_column("what happened")
    table.add_column("how often", justify="right")
    for name, count in happened.items():
        table.add_row(name, f"{count:,}" if isinstance(count, int) else str(count))
    console.print(table)
    for kind, lines in wrong.items():
        for line in lines[:SHOWN]:
            console.print(f"{kind}: {line[:LONGEST]}", style="red", markup=False, highlight=False)
