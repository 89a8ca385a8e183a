"""`leyden run`: worker processes for a run that learns on another machine."""

import os
import sys
from typing import Annotated, Any

import typer

from leyden.core.cli.command import given_command
from leyden.core.cli.options import (
    EnvOption,
    HookOption,
    InputOption,
    JsonOption,
    chosen_agent,
    read_env,
    read_reward_weights,
)
from leyden.core.data.encoding.base_url import check_base_url
from leyden.core.data.encoding.json_line import json_line
from leyden.core.data.isolation import check_isolation
from leyden.core.errors import UsageError
from leyden.core.masking import printable


def run_workers(
    context: typer.Context,
    agent: Annotated[
        str | None,
        typer.Argument(help="path/to/file.py:attribute on this machine. [default: the run's, with --trust-server]"),
    ] = None,
    *,
    server: Annotated[str, typer.Option(help="Root URL of the run, or of `leyden serve`.")],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Run of `leyden serve`. [default: the only one that has not ended]"),
    ] = None,
    workers: Annotated[int, typer.Option(help="Agent processes; with --max-workers, the fewest.")] = 1,
    max_workers: Annotated[
        int | None, typer.Option(help="Most agent processes; their number follows the load. [default: --workers]")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Rollouts at once in each agent process. [default: the run's]")
    ] = None,
    isolation: Annotated[str | None, typer.Option(help="auto, process or shared. [default: the run's]")] = None,
    reward: Annotated[
        str | None, typer.Option(help="Reward function. [default: the run's, with --trust-server]")
    ] = None,
    reward_weight: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Weight of one of the reward's dimensions.")
    ] = None,
    input: InputOption = None,
    hook: HookOption = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a run that does not answer.")] = 600.0,
    drain: Annotated[float, typer.Option(help="On SIGTERM, seconds that running rollouts have to end.")] = 0.0,
    trust_server: Annotated[
        bool,
        typer.Option("--trust-server", help="Use the agent, reward, input, hooks and --env that the server names."),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send tokens and calls over plain HTTP to another machine.")
    ] = False,
    env: EnvOption = None,
    json: JsonOption = False,
) -> None:
    """Run AGENT, or COMMAND, for a run that learns elsewhere, until that has ended.

    The run's token is taken from LEYDEN_RUN_TOKEN; the run was started with the same, and with --host. For a run of
    `leyden serve`, LEYDEN_SERVER_TOKEN has the server's token. What is not given is as the run has it; files are looked
    for in the current folder of this machine. An agent, reward, input or hook that only the server names is run with
    --trust-server alone.
    """
    from leyden.core.server.attach import Attachment, attach_until_stopped
    from leyden.core.server.client import LightningClient
    from leyden.core.server.service import TOKEN as SERVER_TOKEN
    from leyden.core.trainer.agents.remote_workers import RemoteWorkersPlan, work_for
    from leyden.core.trainer.agents.runner_api import TOKEN
    from leyden.core.trainer.event_loop import run_loop, stopped_by_sigterm

    check_base_url(server, "--server")
    token, server_token = os.environ.get(TOKEN, ""), os.environ.get(SERVER_TOKEN, "")
    settings: dict[str, Any] = {
        "workers": workers,
        "max_workers": max_workers,
        "agent": chosen_agent(agent, given_command(context)),
        "reward": reward,
        "reward_weights": read_reward_weights(reward_weight or []) or None,
        "input": input,
        "hooks": tuple(hook or ()),
        "env": read_env(env or [], given_command(context)),
        "concurrency": concurrency,
        "isolation": None if isolation is None else check_isolation(isolation),
        "drain": drain,
        "trust_server": trust_server,
    }
    if run is not None or (server_token and not token):
        client = LightningClient(server, server_token or None, insecure=insecure, patience=patience)
        handle = client.only_run() if run is None else client.run(run)
        attachment = Attachment(address=handle.address, insecure=insecure, patience=patience, settings=settings)
        run_loop(attach_until_stopped(attachment, lambda text: _show(text, json=json)))
        return
    if not token:
        raise UsageError(f"set {TOKEN} to the token that the run was started with, or {SERVER_TOKEN} for a server")
    plan = RemoteWorkersPlan(server=server, token=token, patience=patience, insecure=insecure, **settings)

    async def work() -> None:
        with stopped_by_sigterm() as stopped:
            await work_for(plan, lambda text: _show(text, json=json), stopped)

    run_loop(work())


def _show(text: str, *, json: bool) -> None:
    text = printable(text)
    sys.stdout.write(json_line({"event": "runner", "text": text}) if json else text + "\n")
    sys.stdout.flush()
