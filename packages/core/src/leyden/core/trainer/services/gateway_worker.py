"""Gateway worker: one of several processes of a gateway, started with `python -m` on this module by `GatewayWorkers`.

It accepts connections from a socket that it shares with the other workers, until SIGTERM or its parent's end.
"""

import asyncio
import logging
import shutil
import socket
import sys
from pathlib import Path

import msgspec

from leyden.core.data.resources import LLM
from leyden.core.errors import LeydenError
from leyden.core.gateway.shared.folder import SharedFolder
from leyden.core.masking import mask_own_logs, remember_secret, remember_words
from leyden.core.runner.workers.pipes import ParentPipes, WorkerReady, flush_output, refusal_of
from leyden.core.trainer.event_loop import run_loop, stopped_by_sigterm
from leyden.core.trainer.services.captures import CapturePlan, capture_gateway

GRACE_SECONDS = 10.0
"""Longest time that a worker lives after its parent."""

logger = logging.getLogger(__name__)


class GatewayWorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker serves, and what it shares with the others. It is sent through a pipe, because it has secrets."""

    plan: CapturePlan
    key: bytes
    """Key that signs the tokens of attempts."""
    listener: int
    """Descriptor of the listening socket."""
    folder: str
    """Folder that the workers share."""
    name: str
    """Name of this worker in the folder."""


def main() -> None:
    """Serve until SIGTERM or the parent's end; exits with 0, or with 1 if the gateway cannot be served."""
    pipes = ParentPipes()
    code = 1
    try:
        plan = msgspec.json.decode(pipes.read_line(), type=GatewayWorkerPlan)
        _hide_secrets(plan.plan)
        run_loop(_serve(plan, pipes))
        code = 0
    except LeydenError as error:
        pipes.send(refusal_of(error))
    except BaseException as error:
        logger.critical("the gateway worker ends", exc_info=True)
        pipes.send(refusal_of(error))
    flush_output()
    sys.exit(code)


async def _serve(plan: GatewayWorkerPlan, pipes: ParentPipes) -> None:
    loop, folder = asyncio.get_running_loop(), Path(plan.folder)
    with stopped_by_sigterm() as stopped:
        orphaned = asyncio.Event()

        def parent_ended() -> None:
            orphaned.set()
            stopped.set()

        pipes.when_parent_ends(lambda: loop.call_soon_threadsafe(parent_ended), grace_seconds=GRACE_SECONDS)
        shared = SharedFolder(folder, plan.name)
        listener = shared.listener(socket.socket(fileno=plan.listener))
        try:
            async with capture_gateway(plan.plan, plan.key, listener=listener, shared=shared):
                pipes.send(WorkerReady(adapter=""))
                await stopped.wait()
        finally:
            listener.close()
            shared.close()
        if orphaned.is_set():
            shutil.rmtree(folder, ignore_errors=True)


def _hide_secrets(plan: CapturePlan) -> None:
    """Mask the secrets of the plan in everything that this process logs."""
    mask_own_logs()
    by = plan.answering
    urls = [by.endpoint, *by.replicas] if isinstance(by, LLM) else []
    remember_words([plan.store, *urls, *(plan.servers.urls if plan.servers else ())])
    for secret in (plan.token, by.api_key if isinstance(by, LLM) else None, plan.servers and plan.servers.key):
        if secret:
            remember_secret(secret)


if __name__ == "__main__":
    main()
