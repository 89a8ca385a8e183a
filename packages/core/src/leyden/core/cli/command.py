"""Base classes of all subcommands: check the values of arguments and options before a command runs."""

import re
from typing import Any

from typer.core import TyperCommand

from leyden.core.data.bounds import BOUNDS, check_bound
from leyden.core.errors import UsageError

_COMMAND = "leyden.command"
_EXTRA = re.compile(r"unexpected extra argument(?:s|\(s\))? \((.*)\)")
_EMPTY = "must not be empty: give it a value, or leave it out"


class Command(TyperCommand):
    """Subcommand that accepts numbers within their bounds and no empty text. Other values raise UsageError.

    The error names the option. Empty text typically comes from an unset shell variable, and would look like an omitted
    option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError for empty text; checked first, because an empty path parses as `.`."""
        for at, word in enumerate(args):
            option, equals, value = word.partition("=")
            if word.startswith("--") and equals and not value:
                raise UsageError(f"{option} {_EMPTY}")
            if not word:
                before = args[at - 1] if at else ""
                raise UsageError(f"{before if before.startswith('-') else 'an argument'} {_EMPTY}")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Check the numbers and run the command."""
        for parameter in self.params:
            name, value = parameter.name or "", ctx.params.get(parameter.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and name in BOUNDS:
                check_bound(name, value, max(parameter.opts, key=len))
        return super().invoke(ctx)


class TakesCommand(Command):
    """Subcommand that takes another command, word by word, after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before `--`; `given_command` returns the words after it."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[at + 1 :])
        try:
            return super().parse_args(ctx, args[:at])
        except Exception as error:
            extra = _EXTRA.search(str(getattr(error, "message", "")))
            if extra is None or at < len(args):
                raise
            raise UsageError(
                f"unexpected words {extra[1]!r}; to run a command, write the whole command after --, as in "
                f"`leyden {ctx.info_name} ... -- COMMAND`"
            ) from None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line in the help."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def given_command(context: Any) -> tuple[str, ...]:
    """Return the words after `--`; empty without `--`."""
    return context.meta[_COMMAND]
