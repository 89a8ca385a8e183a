"""`RunClient`: the client with which VERL's processes report where the policy is served, and request rollouts.

Requests without a response are sent again; the run treats equal requests as one.
"""

import asyncio
import time

import aiohttp
import msgspec

from leyden.core.algorithm.external_loop import RunEndpoint, StepTasks, TaskRequest, TaskUsage
from leyden.core.algorithm.verl.wire import (
    FAILED,
    LONGEST_WAIT,
    MESSAGE,
    PAUSE,
    REPLICAS,
    ROLLOUTS,
    TAKEN,
    USED,
    FailedPrompts,
    Replicas,
    UserMessage,
    WeightChange,
    decode_group,
)
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import TrainingError

TIMEOUT = 60.0
"""Seconds for which requests are repeated when the run does not respond."""
_PAUSE = 0.5


class RunClient:
    """Client of the run at `endpoint`. Must be used in a single event loop."""

    def __init__(self, endpoint: RunEndpoint, timeout: float = TIMEOUT) -> None:
        self._endpoint, self._timeout = endpoint, timeout
        self._session: aiohttp.ClientSession | None = None

    async def serve_from(self, replicas: Replicas) -> None:
        """Report where the policy is served. Raises TrainingError if the run does not respond."""
        await self._post(REPLICAS, msgspec.msgpack.encode(replicas))

    async def pause(self, pause: WeightChange) -> None:
        """Stop generation until `serve_from`. Raises TrainingError if the run does not respond."""
        await self._post(PAUSE, msgspec.msgpack.encode(pause))

    async def rollouts(self, request: TaskRequest) -> TrajectoryGroup:
        """Return the rollouts of a task when they have finished. Raises TrainingError if the run has ended."""
        return decode_group(await self._post(ROLLOUTS, msgspec.msgpack.encode(request)))

    async def used(self, used: TaskUsage) -> None:
        """Report what of a task's rollouts can be trained. Raises TrainingError if the run has ended."""
        await self._post(USED, msgspec.msgpack.encode(used))

    async def taken(self, taken: StepTasks) -> None:
        """Report what a step learns from. Raises TrainingError if the run has ended."""
        await self._post(TAKEN, msgspec.msgpack.encode(taken))

    async def failed(self, failed: FailedPrompts) -> None:
        """End the run, and VERL with it. Raises TrainingError if the run does not respond."""
        await self._post(FAILED, msgspec.msgpack.encode(failed))

    async def send_message(self, message: UserMessage) -> None:
        """Send a message to the user of the run. Raises TrainingError if the run does not respond."""
        await self._post(MESSAGE, msgspec.msgpack.encode(message))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, path: str, body: bytes) -> bytes:
        """Send a request and return the response body, repeating the request until the result is ready."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                status, response = await self._post_once(path, body)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise TrainingError(f"the run at {self._endpoint.url} does not answer: {error}") from error
                await asyncio.sleep(_PAUSE)
                continue
            if status == 200:
                return response
            if status != 202:
                raise TrainingError(f"the run at {self._endpoint.url} answers {status}: {response.decode()[:200]}")
            deadline = time.monotonic() + self._timeout

    async def _post_once(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=3 * LONGEST_WAIT),
                headers={"authorization": f"Bearer {self._endpoint.token}"},
            )
        async with self._session.post(f"{self._endpoint.url}{path}", data=body, allow_redirects=False) as response:
            return response.status, await response.read()
