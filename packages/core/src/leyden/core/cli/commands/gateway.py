"""`leyden gateway`: answers agents that run in production, and records each of their runs as a rollout."""

import os
import secrets
import sys
from typing import Annotated

import typer

from leyden.core.cli.options import (
    AllowHostOption,
    ApiKeyEnvOption,
    DeviceOption,
    EndpointOption,
    JsonOption,
    ModelOption,
    PolicyOption,
    ProviderKeyEnvOption,
    ProviderOption,
    answering,
    check_policy_device,
)
from leyden.core.data.encoding.base_url import check_hosts
from leyden.core.data.identity import fits_header
from leyden.core.data.production import ProductionSampling
from leyden.core.data.resources import LLM
from leyden.core.errors import UsageError

TOKEN = "LEYDEN_CAPTURE_TOKEN"
"""Environment variable, here and in the agents' processes."""


def gateway(
    *,
    policy: PolicyOption = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    provider: ProviderOption = None,
    provider_key_env: ProviderKeyEnvOption = None,
    device: DeviceOption = "cpu",
    store: Annotated[str, typer.Option(help="Record into the store at this URI.")] = "sqlite:///captures.db",
    host: Annotated[str, typer.Option(help="Address to listen on; other machines can reach 0.0.0.0.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8765,
    allow_host: AllowHostOption = None,
    base_rate: Annotated[float, typer.Option(help="Share of rollouts whose spans are kept.")] = 1.0,
    reward_threshold: Annotated[
        float | None, typer.Option(help="Keep every rollout with at least this reward.")
    ] = None,
    max_span_per_minute: Annotated[
        int | None,
        typer.Option(help="Most spans to keep in a minute; rollouts that reach --reward-threshold are always kept."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Answer agents in production and record their runs, until SIGTERM or Ctrl-C.

    The capture token, without which no process may begin a rollout, is taken from LEYDEN_CAPTURE_TOKEN, or made and
    printed.
    """
    named = [one for one in answering(policy, endpoint, model, api_key_env).values() if isinstance(one, LLM)]
    check_policy_device(device, policy)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if not fits_header(token):
        raise UsageError(f"{TOKEN} must be printable ASCII without spaces: it is sent in a header")
    sampling = ProductionSampling(
        base_rate=base_rate, reward_threshold=reward_threshold, max_span_per_minute=max_span_per_minute
    )
    from leyden.core.trainer.event_loop import run_loop, stopped_by_sigterm
    from leyden.core.trainer.services.captures import CapturePlan, serve_captures
    from leyden.core.trainer.serving.provider import read_provider

    by = named[0] if named else str(policy)
    plan = CapturePlan(
        answering=by,
        provider=read_provider(provider, provider_key_env),
        device=device,
        store=store,
        token=token,
        sampling=sampling,
        host=host,
        port=port,
        allow_hosts=check_hosts(allow_host or ()),
    )

    async def serve() -> None:
        with stopped_by_sigterm() as stopped:
            await serve_captures(plan, lambda url: _show(url, plan.store, token, json=json), stopped)

    run_loop(serve())


def _show(url: str, store: str, token: str, *, json: bool) -> None:
    """Say what an agent's process needs; a token that the environment gave is not repeated."""
    known = {"LEYDEN_CAPTURE": "production", "LEYDEN_GATEWAY_URL": url}
    if not os.environ.get(TOKEN):
        known[TOKEN] = token
    if json:
        import msgspec

        line = msgspec.json.encode({"url": url, "store": _masked(store), "environment": known}).decode()
    else:
        variables = "\n".join(f"  {name}={value}" for name, value in known.items())
        line = f"Recording into {_masked(store)}. The environment of an agent's process:\n{variables}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _masked(uri: str) -> str:
    from leyden.core.masking import mask_text

    return mask_text(uri)
