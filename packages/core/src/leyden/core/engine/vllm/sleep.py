"""Sleep mode: makes a vLLM server free its GPU's memory for the trainer, and take it again.

At level 1 the server moves its weights and adapters to the machine's memory and drops its cache. This needs its
development endpoints, which need no key: every process that reaches the loopback of this machine can use them.
"""

import logging
from importlib import import_module
from typing import Any

from leyden.core.engine.vllm.client import VllmClient
from leyden.core.errors import EngineError

logger = logging.getLogger(__name__)


async def check_awake(client: VllmClient) -> None:
    """Raise EngineError, in one line, for a server that cannot be put to sleep."""
    await client.request("GET", "/is_sleeping")


async def put_to_sleep(client: VllmClient) -> bool:
    """Put the server to sleep, and return whether it sleeps; no call may be in flight."""
    return await _post(client, "/sleep?level=1")


async def wake_up(client: VllmClient) -> bool:
    """Wake the server, and return whether it is awake; first returns the trainer's cached GPU memory."""
    torch: Any = import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return await _post(client, "/wake_up")


async def _post(client: VllmClient, path: str) -> bool:
    try:
        await client.request("POST", path)
    except EngineError as error:
        logger.warning("The vLLM server did not change its sleep state: %s", error)
        return False
    return True
