"""Which policy answers a call: the one that a route chose, or the one that its rollout names."""

import pytest

from leyden.core.data import semconv
from leyden.core.data.route import ANSWERED_BY
from leyden.core.gateway.call_identity import open_origin
from leyden.core.store.memory import MemoryStore


@pytest.mark.parametrize(
    ("metadata", "headers", "policy"),
    [
        ({}, {}, None),
        ({ANSWERED_BY: "side"}, {}, "side"),
        ({ANSWERED_BY: "side"}, {semconv.HEADER_POLICY: "judge"}, "judge"),
        ({}, {semconv.HEADER_POLICY: "judge"}, "judge"),
    ],
)
async def test_a_route_decides_before_the_rollout(
    metadata: dict[str, str], headers: dict[str, str], policy: str | None
) -> None:
    store = MemoryStore()
    rollout = await store.start_rollout("a task", metadata=metadata)
    origin = await open_origin(store, rollout.rollout_id, rollout.attempt.attempt_id, headers)
    assert origin.policy == policy
