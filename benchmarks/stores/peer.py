"""The same chat spans in Agent Lightning 0.3.0: its store in memory, and its server. Runs in an environment of its own.

`PYTHON peer.py FILE`, the file with spans as JSON, ids as lists of integers; prints rows as JSON. Its objects are
built before the clock starts.
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

stores: Any = import_module("agentlightning.store")
types: Any = import_module("agentlightning.types")

SPANS_OF_ROLLOUT = 20
MATRIX = ((1, 1), (1, 8), (100, 1), (100, 8))
"""Spans in a call, and writers."""
_STARTING_SECONDS = 120.0


async def measure(store: Any, found: list[dict[str, Any]], per_call: int, writers: int, backend: str) -> None:
    """Store the spans under rollouts of their own, each writer its part of them."""
    spans: list[Any] = []
    for start in range(0, len(found), SPANS_OF_ROLLOUT):
        rollout = await store.start_rollout(input={"question": start})
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        spans += [_span(n + 1, {**span, **ids}) for n, span in enumerate(found[start : start + SPANS_OF_ROLLOUT])]
    each = -(-len(spans) // writers)
    began = time.perf_counter()
    await asyncio.gather(*(_store(store, spans[n : n + each], per_call) for n in range(0, len(spans), each)))
    took = time.perf_counter() - began
    row = {"backend": backend, "per_commit": per_call, "writers": writers, "spans_per_s": len(spans) / took}
    print(json.dumps(row), flush=True)


async def _store(store: Any, spans: list[Any], per_call: int) -> None:
    if per_call == 1:
        for span in spans:
            await store.add_span(span)
        return
    for start in range(0, len(spans), per_call):
        await store.add_many_spans(spans[start : start + per_call])


def _span(number: int, fields: dict[str, Any]) -> Any:
    extra: dict[str, Any] = {"events": [], "links": [], "context": None, "parent": None, "sequence_id": number}
    resource = types.OtelResource(attributes={}, schema_url="")
    return types.Span(**{**fields, **extra, "status": types.TraceStatus(status_code="OK"), "resource": resource})


async def main(spans: list[dict[str, Any]]) -> None:
    """Measure both."""
    for per_call, writers in MATRIX:
        await measure(stores.InMemoryLightningStore(), spans, per_call, writers, "memory")
    port = _free_port()
    command = [sys.executable, "-m", "agentlightning.cli.store", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([*command, "--log-level", "ERROR"], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        client = stores.LightningStoreClient(f"http://127.0.0.1:{port}")
        for per_call, writers in MATRIX:
            await measure(client, spans, per_call, writers, "http")
        await client.close()
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    give_up = time.monotonic() + _STARTING_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > give_up:
                raise SystemExit("the server of Agent Lightning did not start") from None
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
