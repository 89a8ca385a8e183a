"""Agents of a session on a Ray cluster. Ray is imported when the session begins."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from leyden.core.errors import UsageError
from leyden.core.trainer.agents.local import AgentPlan, AgentSide, CheckAgents, scaled, worker_spec
from leyden.core.trainer.agents.placement import LOOPBACK, RunnerPlacement
from leyden.core.trainer.serving.address import RunAddress


def ray_agents(plan: AgentPlan, runners: RunnerPlacement) -> AgentSide:
    """Return an agent side like `worker_agents` whose workers are hosted by actors of a Ray cluster.

    The workers' output goes to `plan.log_file`. The side raises UsageError if Ray is missing, no cluster answers, it
    lacks capacity, or its nodes cannot reach the Leyden process.
    """

    @asynccontextmanager
    async def side(address: RunAddress) -> AsyncGenerator[CheckAgents]:
        from leyden.core.runner.workers.ray_cluster import ray_cluster
        from leyden.core.runner.workers.ray_pool import RayPool

        needed = math.ceil((plan.max_workers or plan.workers) * runners.ray_cpus)
        async with ray_cluster(runners.ray_address, needed) as cluster:
            here_only = urlsplit(address.url).hostname in LOOPBACK
            nodes = cluster.nodes()
            if here_only and len(nodes) > 1:
                raise UsageError(
                    f"the Ray cluster has {len(nodes)} nodes, but only this machine can reach the run: give --host "
                    f"0.0.0.0 (and --advertise, if the nodes cannot reach this machine at {cluster.own_address})"
                )
            pool = RayPool(
                cluster,
                worker_spec(plan, address),
                plan.workers,
                most=plan.max_workers,
                hosts=min(plan.workers, runners.ray_actors or len(nodes)),
                cpus=runners.ray_cpus,
                here_only=here_only,
            )
            await pool.start()
            try:
                async with scaled(pool, plan, address) as check:
                    yield check
            finally:
                await pool.stop()

    return side
