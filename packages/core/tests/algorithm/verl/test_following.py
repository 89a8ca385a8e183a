"""Which of two reasons a run with VERL ends for: lost replicas, or what VERL has ended with."""

import asyncio
from typing import Any

import pytest

from leyden.core.algorithm.verl import algorithm
from leyden.core.errors import EngineError, LeydenError, NothingToLearn, TrainingError

LOST, VERL = EngineError("no replica is left"), TrainingError("VERL ended with code 1")
verl: Any = algorithm


@pytest.mark.parametrize(
    ("failed", "ends", "told"),
    [
        (LOST, VERL, VERL),
        (LOST, None, None),
        (NothingToLearn("no call"), VERL, None),
    ],
)
async def test_verls_own_reason_goes_before_what_it_does_to_replicas(
    monkeypatch: pytest.MonkeyPatch, failed: LeydenError, ends: LeydenError | None, told: LeydenError | None
) -> None:
    monkeypatch.setattr(algorithm, "END_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    failure, ended = loop.create_future(), loop.create_future()
    failure.set_exception(failed)
    if ends is not None:
        loop.call_later(0.01, ended.set_exception, ends)
    said = None
    try:
        await verl._raise_verl_error(failure, ended)
    except LeydenError as error:
        said = error
    assert said is told
    await asyncio.sleep(0.02)
    assert failure.exception() is failed
    assert (ended.exception() if ended.done() else None) is ends
