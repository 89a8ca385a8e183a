"""`SingleCalls`: calls about one rollout, as calls about many. For stores in which a single call is not cheaper."""

from typing import Any

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, Rollout, RolloutConfig, RolloutMode, Task
from leyden.core.store.base import LightningStore
from leyden.core.store.common.argument_types import ArgumentChecks


class SingleCalls(ArgumentChecks, LightningStore):
    """Enqueues and claims one rollout through the methods for many."""

    async def enqueue_rollout(
        self,
        input: Task,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        rollout_id: str | None = None,
        queue: str = "",
    ) -> Rollout:
        """Put a rollout at the end of a queue; the latest resources are assigned unless an id is given."""
        request = EnqueueRollout(
            input=input,
            mode=mode,
            resources_id=resources_id,
            config=config,
            metadata=metadata,
            rollout_id=rollout_id,
            queue=queue,
        )
        return (await self.enqueue_many_rollouts([request]))[0]

    async def dequeue_rollout(
        self, worker_id: str | None = None, request_id: str | None = None, queue: str = ""
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout of a queue with a new attempt; return None when the queue is empty."""
        claimed = await self.dequeue_many_rollouts(worker_id=worker_id, request_id=request_id, queue=queue)
        return next(iter(claimed), None)
