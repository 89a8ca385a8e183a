"""Command `leyden`: defines its subcommands and turns errors into one line and an exit code."""

import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.main import get_command

from leyden.core.cli.command import Command, TakesCommand
from leyden.core.cli.commands import (
    check,
    console,
    dev,
    exec,
    experiments,
    export,
    gateway,
    imports,
    policies,
    quickstart,
    rescore,
    show,
    stop,
    store,
    train,
    tune,
    verl,
    why,
)
from leyden.core.cli.commands.models import group as models
from leyden.core.cli.commands.prompts import group as prompts
from leyden.core.cli.commands.run import run_workers
from leyden.core.cli.commands.server import runs, serve
from leyden.core.cli.descriptors import OutputError, give_up_output, guard_output, open_descriptors
from leyden.core.errors import LeydenError, UsageError
from leyden.core.masking import mask_own_logs, printable, remember_words
from leyden.core.trainer.event_loop import Terminated

app = typer.Typer(
    name="leyden",
    help="Train the language model inside an agent that already exists, without changing the agent.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # loading rich takes longer than reading the help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", cls=TakesCommand)(train.train)
app.command("quickstart", cls=Command)(quickstart.quickstart)
app.command("tune", cls=Command)(tune.tune)
app.command("check", cls=TakesCommand)(check.check)
app.command("dev", cls=TakesCommand)(dev.dev)
app.command("exec", cls=TakesCommand)(exec.run_command)
app.command("run", cls=TakesCommand)(run_workers)
app.command("gateway", cls=Command)(gateway.gateway)
app.command("stop", cls=Command)(stop.stop)
app.command("show", cls=Command)(show.show)
app.command("why", cls=Command)(why.why)
app.command("console", cls=Command)(console.console)
app.command("rescore", cls=Command)(rescore.rescore)
app.command("store", cls=Command)(store.store)
app.command("serve", cls=Command)(serve.serve)
app.command("export", cls=Command)(export.export)
app.add_typer(runs.app, name="runs")
app.add_typer(experiments.app, name="experiments")
app.add_typer(imports.app, name="import")
app.add_typer(models.app, name="models")
app.add_typer(prompts.app, name="prompts")
app.add_typer(policies.app, name="policies")
app.add_typer(verl.app, name="verl")

INTERRUPTED, TERMINATED = 130, 143


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            found = version("leyden-core")
        except PackageNotFoundError:  # a source checkout on PYTHONPATH
            found = "(not installed)"
        typer.echo(f"leyden {found}, Python {sys.version.split()[0]}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train the language model inside an agent that already exists, without changing the agent."""


def main() -> None:
    """Run the command line and exit.

    Exit codes: 0 success, 2 arguments cannot work, 1 other failure, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
    """
    open_descriptors()
    guard_output()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except OutputError as error:
        give_up_output()
        code = _fail(str(error), 1)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. A `LeydenError` is printed in one line, without a traceback."""
    remember_words(arguments)
    mask_own_logs()
    try:
        code: Any = command_line()(arguments, prog_name="leyden", standalone_mode=False)
    except typer.Exit as exit_:
        return exit_.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except UsageError as error:
        return _fail(str(error), 2)
    except LeydenError as error:
        if isinstance(error, OutputError):
            give_up_output()
        return _fail(str(error), 1)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(f"{error.format_message()}\n")  # type: ignore[attr-defined]
            return 2
        if _is_usage(error):
            return _fail(error.format_message(), 2)  # type: ignore[attr-defined]
        raise
    return code if isinstance(code, int) else 0


@cache
def command_line() -> Any:
    """Return the command line built from `app`. It is built once and cached; Typer builds it again for every call."""
    return get_command(app)


def _is_usage(error: Exception) -> bool:
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) is not None


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"leyden: {printable(message)}\n")
    return code
