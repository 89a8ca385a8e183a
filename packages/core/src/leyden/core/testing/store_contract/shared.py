"""Common parts of the store contract: the abstract method of an implementation, and small helpers."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.rollout import Attempt, AttemptedRollout, Rollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore

RETRY = RolloutConfig(max_attempts=2, retry_condition=("failed", "timeout", "unresponsive"))
"""One retry after any failure."""
MISSING = "ro-missing"


class StoreTests(ABC):
    """Provides each test with a store of its own."""

    @abstractmethod
    def opened(self, folder: Path) -> AbstractAsyncContextManager[LightningStore]:
        """Open an empty store that may keep its files in `folder`, and close it after the block."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncGenerator[LightningStore]:
        """The store under test."""
        async with self.opened(tmp_path) as store:
            yield store


def span_of(attempt: Attempt, span_id: str = "a1", sequence_id: int = 0, *, name: str = "chat") -> Span:
    """Return a span of `attempt`; with a `sequence_id` of 0, the store numbers it."""
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=sequence_id,
        trace_id="0" * 31 + "1",
        span_id=span_id.zfill(16),
        name=name,
        start_time=1.5,
        end_time=2.5,
    )


async def claimed(store: LightningStore, config: RolloutConfig | None = None) -> AttemptedRollout:
    """Queue a rollout, claim it, and return it."""
    await store.enqueue_rollout({"question": 1}, config=config)
    return taken(await store.dequeue_rollout())


def taken(found: AttemptedRollout | None) -> AttemptedRollout:
    """Return the claimed rollout; the test fails for None."""
    assert found is not None, "the queue is empty"
    return found


async def rollout_now(store: LightningStore, rollout: Rollout) -> AttemptedRollout:
    """Read a rollout that has an attempt."""
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(found, AttemptedRollout)
    return found


async def attempt_now(store: LightningStore, attempt: Attempt) -> Attempt:
    """Read an attempt."""
    page = await store.query_attempts(attempt.rollout_id)
    return next(found for found in page if found.attempt_id == attempt.attempt_id)


async def counts_of(store: LightningStore) -> dict[str, Any]:
    """Return the store's statistics without the uptime."""
    return {name: value for name, value in (await store.statistics()).items() if name != "uptime"}


async def queue_length(store: LightningStore) -> int:
    """Return the number of rollouts that wait to be claimed."""
    return (await store.statistics())["queue_length"]
