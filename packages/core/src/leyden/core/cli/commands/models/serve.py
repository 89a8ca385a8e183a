"""`leyden models serve`: answers any client of OpenAI or Anthropic with one version of a run, and records nothing."""

import os
import secrets
import sys
from typing import Annotated

import typer

from leyden.core.cli.options import RUNS, AllowHostOption, DeviceOption, JsonOption, RunsOption
from leyden.core.data.encoding.base_url import check_hosts
from leyden.core.data.encoding.json_line import json_line
from leyden.core.data.identity import fits_header
from leyden.core.errors import UsageError
from leyden.core.masking import remember_secret

KEY = "LEYDEN_SERVE_KEY"
PARENT = "LEYDEN_SERVE_PARENT"
"""Variable with the id of the process that starts the server, and with which it ends."""


def serve(
    version: Annotated[str, typer.Argument(help="RUN (its kept version), RUN:VERSION or RUN:last.")],
    *,
    policy: Annotated[
        str | None, typer.Option("--policy", help="Name of one policy of a run that has several.")
    ] = None,
    runs: RunsOption = RUNS,
    device: DeviceOption = "cpu",
    host: Annotated[str, typer.Option(help="Address to listen on; other machines can reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8700,
    allow_host: AllowHostOption = None,
    idle_minutes: Annotated[float, typer.Option(help="End after so many minutes without a request; 0: never.")] = 0.0,
    json: JsonOption = False,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True, envvar=PARENT)] = None,
) -> None:
    """Serve a version of a run at an OpenAI-style URL, until SIGTERM or Ctrl-C; no call is recorded.

    The API key that clients need is taken from LEYDEN_SERVE_KEY, or made and printed.
    """
    from leyden.core.policy.device import check_device
    from leyden.core.trainer.event_loop import run_loop, stopped_by_sigterm
    from leyden.core.trainer.run_folder.models import find_version
    from leyden.core.trainer.services.version_server import VersionPlan, plan_policy, serve_version

    check_device(device)
    given = os.environ.get(KEY)
    key = given or secrets.token_urlsafe(24)
    if not fits_header(key):
        raise UsageError(f"{KEY} must be printable ASCII without spaces: it is sent in a header")
    models, found = find_version(runs, version)
    plan = VersionPlan(
        models=models,
        version=found,
        policy=plan_policy(models, found, policy),
        device=device,
        key=key,
        host=host,
        port=port,
        allow_hosts=check_hosts(allow_host or ()),
        idle_seconds=60 * idle_minutes,
        parent=parent,
    )
    remember_secret(key)

    def started(url: str) -> None:
        base = f"{url}/v1"
        if json:
            shown = {"url": base, "model": found.label, "run": found.run, "version": found.version}
            line = json_line(shown if given else {**shown, "key": key})
        else:
            of_key = f"the value of {KEY}" if given else key
            line = f"{found.label} is at {base} (stop it with Ctrl-C)\n  API key: {of_key}\n  model: {found.label}\n"
        sys.stdout.write(line)
        sys.stdout.flush()

    async def serving() -> None:
        with stopped_by_sigterm() as stopped:
            await serve_version(plan, started, stopped)

    run_loop(serving())
