"""Program of a scoring process: loads one reward function and scores one rollout at a time.

`python -m leyden.core.trainer.rescore.worker DESCRIPTOR` talks over the socket of that number. What the reward prints
goes to standard error.
"""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from multiprocessing.connection import Connection

import msgspec

from leyden.core.data.plain.recorded_object import Restored
from leyden.core.errors import LeydenError, RewardError
from leyden.core.runner.user_code.loading import load_object
from leyden.core.runner.user_code.reward import RewardFunction, check_reward_function, score
from leyden.core.trainer.rescore.messages import Job, Loaded, Score, Setup

_LOOK_SECONDS = 0.5
"""Seconds between two looks at whether the parent process is alive."""


def main(descriptor: int) -> None:
    """Serve the socket until its other end closes."""
    os.dup2(2, 1)
    _end_with_parent()
    connection = Connection(descriptor)
    setup = msgspec.json.decode(connection.recv_bytes(), type=Setup)
    try:
        function = load_object(setup.reward)
        check_reward_function(function)
    except LeydenError as error:
        connection.send_bytes(msgspec.json.encode(Loaded(problem=str(error))))
        return
    _limit_memory(setup.memory)
    connection.send_bytes(msgspec.json.encode(Loaded()))
    with asyncio.Runner() as runner, contextlib.suppress(EOFError):
        while True:
            job = msgspec.json.decode(connection.recv_bytes(), type=Job)
            found = runner.run(scored(function, job, setup.weights))
            connection.send_bytes(msgspec.json.encode(found))


async def scored(function: RewardFunction, job: Job, weights: dict[str, float]) -> Score:
    """Return the score of one rollout.

    If the function read something that was not stored, the score is that error, even where the function returned.
    """
    try:
        task, result = Restored(job.task), Restored(job.result)
    except ValueError as error:
        return Score(error=f"the stored result cannot be read: {error}", kind="not stored")
    try:
        reward = await score(function, task.value, result.value, weights or None)
    except RewardError as error:
        text, _, _ = str(error).rpartition(" for task ")  # so that equal errors for different tasks are counted as one
        found = Score(error=text or str(error), kind="reward failed")
    else:
        dimensions = {name: float(value) for name, value in reward.dimensions.items()}
        found = Score(value=float(reward.value), dimensions=dimensions, feedback=reward.feedback)
    if refused := [*task.refused, *result.refused]:
        return Score(error=refused[0], kind="not stored")
    return found


def _limit_memory(most: int) -> None:
    """Limit the address space to what it is now and `most` bytes more. An allocation beyond it raises MemoryError."""
    with contextlib.suppress(OSError, ValueError):  # a system without /proc, or that has no such limit
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = now + most if hard == resource.RLIM_INFINITY else min(now + most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _end_with_parent() -> None:
    """End this process soon after its parent, even while the reward computes."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
