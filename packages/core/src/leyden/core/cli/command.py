"""`Command`, which every subcommand is: what is given in options is looked at before anything is done with it."""

from typing import Any

from typer.core import TyperCommand

from leyden.core.data.bounds import BOUNDS, check_bound
from leyden.core.errors import UsageError

_COMMAND = "leyden.command"
_EMPTY = "must not be empty: give it a value, or leave it out"


class Command(TyperCommand):
    """Takes numbers that are within their bounds, and no empty text. Raises UsageError, naming the option, for others.

    An empty text comes from a variable of a shell that is not set, and would pass for an option that is not given.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse them; they are looked at before, since an empty path is the current folder once it is one."""
        for at, word in enumerate(args):
            option, equals, value = word.partition("=")
            if word.startswith("--") and equals and not value:
                raise UsageError(f"{option} {_EMPTY}")
            if not word:
                before = args[at - 1] if at else ""
                raise UsageError(f"{before if before.startswith('-') else 'an argument'} {_EMPTY}")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Look at the numbers, and do the command's work."""
        for parameter in self.params:
            name, value = parameter.name or "", ctx.params.get(parameter.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and name in BOUNDS:
                check_bound(name, value, max(parameter.opts, key=len))
        return super().invoke(ctx)


class TakesCommand(Command):
    """A command of ours that takes another one, word by word, after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before `--`; `given_command` has what stands after it."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What the help's first line shows."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def given_command(context: Any) -> tuple[str, ...]:
    """The words after `--`; none if there is no `--`."""
    return context.meta[_COMMAND]
