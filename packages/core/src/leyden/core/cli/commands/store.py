"""`leyden store`: one store for processes on any machine, over HTTP."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from leyden.core.cli.options import AllowHostOption, JsonOption, warn_of_host
from leyden.core.data.encoding.base_url import check_hosts

TOKEN_FILE = Path("leyden-store.token")


def store(
    *,
    uri: Annotated[str, typer.Option(help="Serve the store at this URI.")] = "sqlite:///store.db",
    host: Annotated[str, typer.Option(help="Address to listen on; other machines can reach 0.0.0.0.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8766,
    allow_host: AllowHostOption = None,
    token_file: Annotated[Path, typer.Option(help="File with the token, if LEYDEN_STORE_TOKEN is not set.")] = (
        TOKEN_FILE
    ),
    scale_at: Annotated[
        int, typer.Option(help="Number of waiting spans from which /metrics requests more servers.")
    ] = 5_000,
    json: JsonOption = False,
) -> None:
    """Serve a store over HTTP, until SIGTERM or Ctrl-C.

    The token, which opens everything, is taken from LEYDEN_STORE_TOKEN, or from a file that its owner alone can read
    and that is made where there is none.
    """
    from leyden.core.store.open import TOKEN
    from leyden.core.trainer.event_loop import run_loop, stopped_by_sigterm
    from leyden.core.trainer.services.store import StorePlan, serve_store

    given = os.environ.get(TOKEN)
    kept = f"in {TOKEN}" if given else f"in {token_file}"
    plan = StorePlan(
        uri=uri,
        token=given or token_file,
        host=host,
        port=port,
        allow_hosts=check_hosts(allow_host or ()),
        scale_at=scale_at,
    )

    async def serve() -> None:
        with stopped_by_sigterm() as stopped:
            await serve_store(plan, lambda url: _show(url, uri, kept, json=json), stopped)

    warn_of_host(host)
    run_loop(serve())


def _show(url: str, uri: str, kept: str, *, json: bool) -> None:
    """Say where the store is and where its token, which is never printed."""
    from leyden.core.masking import mask_text
    from leyden.core.store.open import TOKEN

    masked = mask_text(uri)
    if json:
        import msgspec

        line = msgspec.json.encode({"url": url, "store": masked, "token": kept}).decode()
    else:
        line = (
            f"Serving {masked} at {url}; its token is {kept}.\n"
            f"  open it: open_store({url!r}) with {TOKEN} set\n"
            f"  OTLP:    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT={url}/v1/traces\n"
            f"  look:    {url}/docs and {url}/metrics"
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
