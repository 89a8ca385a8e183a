"""`leyden gateway`: answers agents that run in production, and records each of their runs as a rollout."""

import os
import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.options import (
    AllowHostOption,
    ApiKeyEnvOption,
    DeviceOption,
    EndpointOption,
    JsonOption,
    ModelOption,
    PolicyOption,
    PromptsOption,
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

if TYPE_CHECKING:
    from leyden.core.trainer.serving.policy_servers import PolicyServers

TOKEN = "LEYDEN_CAPTURE_TOKEN"
"""Environment variable, here and in the agents' processes."""


def gateway(
    *,
    policy: PolicyOption = None,
    engine_url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="vLLM server that serves --policy; may be repeated. [default: the embedded engine]"
        ),
    ] = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    provider: ProviderOption = None,
    provider_key_env: ProviderKeyEnvOption = None,
    prompts: PromptsOption = None,
    device: DeviceOption = "cpu",
    store: Annotated[str, typer.Option(help="Record into the store at this URI.")] = "sqlite:///captures.db",
    host: Annotated[str, typer.Option(help="Address to listen on; other machines can reach 0.0.0.0.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8765,
    allow_host: AllowHostOption = None,
    workers: Annotated[int, typer.Option(help="Processes that answer; more than 1 share one store.")] = 1,
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
    servers = _policy_servers(policy, engine_url, model, api_key_env, device)
    given = answering(policy, endpoint, *((None, None) if servers else (model, api_key_env)))
    named = [one for one in given.values() if isinstance(one, LLM)]
    check_policy_device(device, policy)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if not fits_header(token):
        raise UsageError(f"{TOKEN} must be printable ASCII without spaces: it is sent in a header")
    sampling = ProductionSampling(
        base_rate=base_rate, reward_threshold=reward_threshold, max_span_per_minute=max_span_per_minute
    )
    from leyden.core.trainer.event_loop import run_loop, stopped_by_sigterm
    from leyden.core.trainer.prompt_file import read_prompts
    from leyden.core.trainer.services.captures import CapturePlan, serve_captures
    from leyden.core.trainer.services.gateway_workers import check_workers, serve_with_workers
    from leyden.core.trainer.serving.provider import read_provider

    check_workers(workers, store, is_embedded=not named and servers is None)
    by = named[0] if named else str(policy)
    plan = CapturePlan(
        answering=by,
        servers=servers,
        provider=read_provider(provider, provider_key_env),
        prompts=None if prompts is None else read_prompts(prompts),
        device=device,
        store=store,
        token=token,
        sampling=sampling,
        host=host,
        port=port,
        allow_hosts=check_hosts(allow_host or ()),
    )

    async def serve() -> None:
        def started(url: str) -> None:
            _show(url, plan.store, token, json=json)

        with stopped_by_sigterm() as stopped:
            if workers == 1:
                await serve_captures(plan, started, stopped)
            else:
                await serve_with_workers(plan, workers, started, stopped)

    run_loop(serve())


def _policy_servers(
    policy: str | None, urls: list[str] | None, model: str | None, api_key_env: str | None, device: str
) -> "PolicyServers | None":
    """Return the servers at --engine-url; raises UsageError for options that do not go together."""
    if not urls:
        return None
    if policy is None:
        raise UsageError("--engine-url serves a --policy, whose tokenizer is loaded here: give that too")
    if device != "cpu":
        raise UsageError("--device has no effect with --engine-url: no policy is loaded here")
    key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not key:
        raise UsageError(f"--api-key-env {api_key_env}: this environment variable is not set")
    from leyden.core.trainer.serving.policy_servers import PolicyServers

    return PolicyServers(urls=tuple(urls), key=key, model=model)


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
