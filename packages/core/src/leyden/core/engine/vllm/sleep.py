"""How a vLLM server leaves its GPU's memory to the trainer, and takes it again. Knows nothing of updates.

At level 1 it moves its weights, adapters among them, to the machine's memory and drops its cache. Its development
endpoints must be open for that, which need no key: whoever reaches the loopback of this machine reaches them.
"""

import logging
from importlib import import_module
from typing import Any

from leyden.core.engine.vllm.client import VllmWire
from leyden.core.errors import EngineError

logger = logging.getLogger(__name__)


async def check_awake(wire: VllmWire) -> None:
    """Raise EngineError, in one line, for a server that cannot be put to sleep."""
    await wire.ask("GET", "/is_sleeping")


async def put_to_sleep(wire: VllmWire) -> bool:
    """Whether it sleeps now; nothing may be in flight."""
    return await _asked(wire, "/sleep?level=1")


async def wake_up(wire: VllmWire) -> bool:
    """Whether it is awake again; what the trainer's allocator keeps for later is given back to the GPU before."""
    torch: Any = import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return await _asked(wire, "/wake_up")


async def _asked(wire: VllmWire, path: str) -> bool:
    try:
        await wire.ask("POST", path)
    except EngineError as error:
        logger.warning("The vLLM server did not obey: %s", error)
        return False
    return True
