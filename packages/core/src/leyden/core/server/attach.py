"""Agents for a run of a server: finds the run's own address, and runs workers for it as `leyden run` does.

The server only says where the run is. Tokens, claims and calls go between the workers and the run itself. If the run
does not answer, the server is asked again, since a run that was resumed may have another address.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leyden.core.server.messages import AttachAddress
from leyden.core.server.status import ENDED
from leyden.core.trainer.agents.remote_workers import NoServer, RemoteWorkersPlan, work_for
from leyden.core.trainer.event_loop import stopped_by_sigterm

RETRY_SECONDS = 15.0
"""Time for which a run may not answer before the server is asked for its address again."""
PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Workers for a run of a server."""

    address: Callable[[], AttachAddress]
    """Returns where the run is; raises NoServer if the server does not answer."""
    insecure: bool
    patience: float
    """Time in seconds for which neither the server nor the run may answer."""
    settings: Mapping[str, Any]
    """Further fields of `RemoteWorkersPlan`."""

    def plan(self, address: AttachAddress) -> RemoteWorkersPlan:
        """Return the plan of the workers. Raises UsageError for settings that cannot work."""
        return RemoteWorkersPlan(
            **self.settings,
            server=address.url,
            token=address.token,
            insecure=self.insecure,
            patience=min(RETRY_SECONDS, self.patience),
        )


async def attach(attachment: Attachment, on_message: Callable[[str], None], stopped: asyncio.Event) -> None:
    """Run workers until the run is finished or `stopped` is set, across its resumptions and restarts of the server.

    Raises as `work_for`, and NoServer when the run and the server have not answered, or the run has not gone on, for
    `attachment.patience` seconds.
    """
    give_up, last_state = time.monotonic() + attachment.patience, ""
    while not stopped.is_set():
        address, problem = await _address(attachment)
        state = "" if address is None else address.state
        if (state or "away") != last_state:
            on_message(problem)
        last_state = state or "away"
        if state == "finished":
            return
        if address is not None and state == "running" and await _work(attachment, address, on_message, stopped):
            give_up = time.monotonic() + attachment.patience
            continue
        if state and state not in ENDED:  # it waits for its budget
            give_up = time.monotonic() + attachment.patience
        elif time.monotonic() > give_up:
            raise NoServer(f"{problem}, and did not go on for {attachment.patience:.0f} s")
        await _pause(stopped)


async def _address(attachment: Attachment) -> tuple[AttachAddress | None, str]:
    """Return where the run is, None if the server does not answer; and a line that says so."""
    try:
        address = await asyncio.to_thread(attachment.address)
    except NoServer as error:
        return None, str(error)
    attachment.plan(address)  # raises for settings that cannot work, also before the run has started
    return address, f"run {address.run} is {address.state}"


async def _work(
    attachment: Attachment, address: AttachAddress, on_message: Callable[[str], None], stopped: asyncio.Event
) -> bool:
    """Run workers until the run's end; return False if the run has not answered: it may have another address now."""
    try:
        await work_for(attachment.plan(address), on_message, stopped)
    except NoServer:
        return False
    return True


async def attach_until_stopped(attachment: Attachment, on_message: Callable[[str], None]) -> None:
    """`attach` until SIGTERM, which only a main thread can handle."""
    if threading.current_thread() is not threading.main_thread():
        await attach(attachment, on_message, asyncio.Event())
        return
    with stopped_by_sigterm() as stopped:
        await attach(attachment, on_message, stopped)


async def _pause(stopped: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAUSE_SECONDS):
            await stopped.wait()
